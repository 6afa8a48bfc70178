"""LD_PRELOAD shims: built when needed and put around a process. `slowflush` delays every flush."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.systems.server_process import CHECKOUT

SOURCES = CHECKOUT / "bench" / "shim"
CACHE = CHECKOUT / ".cache" / "shims"


def compiler() -> str | None:
    """The path of a C compiler, or None."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build(name: str, folder: Path = SOURCES) -> Path:
    """The shared library of a shim, built unless one of these very sources is in the cache."""
    source = folder / f"{name}.c"
    sources = source.read_bytes() + (SOURCES / "real.h").read_bytes()
    target = CACHE / f"{name}-{hashlib.sha256(sources).hexdigest()[:16]}.so"
    if not target.exists():
        cc = compiler()
        if cc is None:
            raise FileNotFoundError("no C compiler (cc, gcc, clang)")
        CACHE.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        flags = ["-O2", "-fPIC", "-shared", "-Wall", "-Werror", f"-I{SOURCES}"]
        subprocess.run([cc, *flags, "-o", str(made), str(source), "-ldl", "-lpthread"], check=True)
        made.replace(target)
    return target


def preload(*libraries: Path) -> dict[str, str]:
    """The environment that puts shims around a process, the first one outermost."""
    return {"LD_PRELOAD": ":".join(str(library) for library in libraries)}


def slow_flushes(delay_us: int, log: Path | None = None, *, jitter_us: int = 0) -> dict[str, str]:
    """The environment of `slowflush`, without LD_PRELOAD."""
    delays = {"SLOWFLUSH_US": str(delay_us), "SLOWFLUSH_JITTER_US": str(jitter_us)}
    return delays | ({"SLOWFLUSH_LOG": str(log)} if log else {})
