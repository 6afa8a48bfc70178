"""The names of files and folders: which file, by its number, has which path. Pure; errors are a file system's."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence


def _parent(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


class Tree:
    """Paths are relative, with "/"; the root is "" and always there."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {"": set()}
        self.next_number = 1
        """Of the next file that is made. Never falls."""

    def copy(self) -> Tree:
        other = Tree()
        other._files = dict(self._files)
        other._folders = {path: set(names) for path, names in self._folders.items()}
        other.next_number = self.next_number
        return other

    def dump(self) -> tuple[int, dict[str, int], list[str]]:
        return self.next_number, dict(self._files), sorted(self._folders)

    @classmethod
    def load(cls, next_number: int, files: dict[str, int], folders: list[str]) -> Tree:
        tree = cls()
        for path in sorted(folders):
            if path:
                tree.make_dir(path)
        for path, number in files.items():
            tree.create(path, number)
        tree.next_number = next_number
        return tree

    def numbers(self) -> Iterator[int]:
        return iter(self._files.values())

    def number(self, path: str) -> int:
        """Raises FileNotFoundError, IsADirectoryError."""
        number = self._files.get(path)
        if number is None:
            if path in self._folders:
                raise IsADirectoryError(errno.EISDIR, "is a folder", path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return number

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def is_dir(self, path: str) -> bool:
        return path in self._folders

    def list(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def create(self, path: str, number: int) -> None:
        """Raises FileExistsError, FileNotFoundError."""
        folder, name = _parent(path)
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "is there already", path)
        self._names(folder).add(name)
        self._files[path] = number
        self.next_number = max(self.next_number, number + 1)

    def remove(self, path: str) -> int:
        """The number of what went. Raises FileNotFoundError, IsADirectoryError."""
        number = self.number(path)
        folder, name = _parent(path)
        del self._files[path]
        self._folders[folder].discard(name)
        return number

    def rename(self, old: str, new: str) -> int | None:
        """The number of what had the new name, if something had. Raises as the others."""
        number = self.number(old)
        folder, name = _parent(new)
        names = self._names(folder)
        if new in self._folders:
            raise IsADirectoryError(errno.EISDIR, "is a folder", new)
        if old == new:
            return None
        replaced = self._files.get(new)
        self.remove(old)
        names.add(name)
        self._files[new] = number
        return replaced

    def missing_dirs(self, path: str) -> Sequence[str]:
        """Of the folder and those above it, what is not there; the uppermost first."""
        missing = []
        while path not in self._folders:
            missing.append(path)
            path = _parent(path)[0]
        return missing[::-1]

    def make_dir(self, path: str) -> None:
        """Raises FileExistsError, FileNotFoundError."""
        folder, name = _parent(path)
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "is there already", path)
        self._names(folder).add(name)
        self._folders[path] = set()

    def remove_dir(self, path: str) -> None:
        """Raises FileNotFoundError; OSError where it is not empty."""
        if self._names(path):
            raise OSError(errno.ENOTEMPTY, "is not empty", path)
        folder, name = _parent(path)
        del self._folders[path]
        self._folders[folder].discard(name)

    def _names(self, folder: str) -> set[str]:
        if folder in self._files:
            raise NotADirectoryError(errno.ENOTDIR, "is no folder", folder)
        names = self._folders.get(folder)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        return names
