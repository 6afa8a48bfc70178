"""Java for tests (bench/systems/java.py): where javac is missing they are left out."""

from pathlib import Path

from bench.systems import java
from bench.systems.java import jars
from tests.support.toolchains import require_program

__all__ = ("class_path", "jars")


def class_path(sources: Path, libraries: Path) -> str:
    """The Java sources of a folder, compiled against the jars of another, and these jars."""
    require_program("javac", "the Java clients cannot be tested")
    return java.class_path(sources, libraries)
