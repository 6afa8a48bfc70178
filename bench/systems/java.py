"""Jars from Maven and classes from sources of this repository, each made once and kept in .cache."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.systems.server_process import CHECKOUT

CACHE = CHECKOUT / ".cache"


def jars(pom: Path, target: Path) -> Path:
    """The folder with everything that a pom depends on, fetched into `target` plus a name for its content."""
    # Another version in the pom means another folder.
    target = target.with_name(f"{target.name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}")
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={made}"],
            check=True,
            cwd=pom.parent,
        )
        _keep(made, target)
    return target


def _keep(made: Path, target: Path) -> None:
    """Move a folder to its place, unless another test run was quicker with the same."""
    try:
        made.replace(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(made)


def class_path(sources: Path, libraries: Path) -> str:
    """The Java sources of a folder, compiled against the jars of another, and these jars."""
    content = hashlib.sha256(repr(sorted(jar.name for jar in libraries.glob("*.jar"))).encode())
    files = sorted(sources.glob("*.java"))
    for file in files:
        content.update(file.read_bytes())
    target = CACHE / "classes" / f"{sources.name}-{content.hexdigest()[:16]}"
    if not target.exists():
        made = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(made, ignore_errors=True)
        command = [
            "javac",
            "-Xlint:all,-processing",
            "-Werror",
            "-cp",
            f"{libraries}/*",
            "-d",
            str(made),
            *map(str, files),
        ]
        subprocess.run(command, check=True)
        _keep(made, target)
    return f"{target}:{libraries}/*"
