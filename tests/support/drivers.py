"""Drivers of clients in Go and in JavaScript, each made once from what this repository holds and kept in .cache."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.broker_process import CHECKOUT
from tests.support.toolchains import require_program

CACHE = CHECKOUT / ".cache" / "drivers"


def made_once(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, made anew when one of the sources changes."""
    content = hashlib.sha256()
    for file in sorted(sources):
        content.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    target = CACHE / f"{name}-{content.hexdigest()[:16]}"
    if not target.exists():
        made = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        make(made)
        try:
            made.replace(target)
        except OSError:
            # Another test run was quicker with the same.
            if not target.is_dir():
                raise
            shutil.rmtree(made)
    return target


def go_programs(module: Path) -> Path:
    """The folder with the programs of a Go module."""
    go = require_program("go", "the clients in Go cannot be tested")
    sources = [file for file in module.rglob("*") if file.suffix in (".go", ".mod", ".sum")]

    def build(target: Path) -> None:
        subprocess.run([go, "vet", "./..."], cwd=module, check=True)
        # The version of this repository is of no use in them, and git may be missing.
        command = [go, "build", "-buildvcs=false", "-o", f"{target}/", "./..."]
        subprocess.run(command, cwd=module, check=True)

    return made_once("go", sources, build)


def node_package(package: Path) -> Path:
    """A folder with the package's files, and with what its lock file names installed beside them."""
    require_program("node", "the clients in JavaScript cannot be tested")
    npm = require_program("npm", "the clients in JavaScript cannot be tested")
    sources = [file for file in package.iterdir() if file.suffix in (".js", ".json")]

    def install(target: Path) -> None:
        for file in sources:
            shutil.copy(file, target)
        command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        subprocess.run(command, cwd=target, check=True)

    return made_once("node", sources, install)
