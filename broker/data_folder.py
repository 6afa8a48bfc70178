"""The data folder's marker: what made it and in which format. A folder of another make is refused, never touched."""

from __future__ import annotations

from storage.disk import Disk

FORMAT_VERSION = 1
MARKER = "SEALOG"


class ForeignFolder(Exception):
    """The data folder is not ours, or of a format version that this program does not know."""


def claim(disk: Disk) -> None:
    """Check the marker; write it into an empty folder.

    Raises:
        ForeignFolder: the folder holds something else, or another format version.
    """
    if disk.exists(MARKER):
        file = disk.open_readonly(MARKER)
        try:
            text = file.pread(64, 0).decode("ascii", "replace").strip()
        finally:
            file.close()
        if text != f"sealog format {FORMAT_VERSION}":
            raise ForeignFolder(
                f"its marker says {text!r}; this program reads format {FORMAT_VERSION}. "
                "Use the program that wrote it, or another folder"
            )
        return
    strangers = [name for name in disk.list("") if name not in (MARKER + ".new", "lock")]
    if strangers:
        raise ForeignFolder(
            f"it holds {strangers[0]!r} and {len(strangers) - 1} more, but no sealog marker: name an empty folder"
        )
    if disk.exists(MARKER + ".new"):
        disk.remove(MARKER + ".new")
    file = disk.open(MARKER + ".new", create=True)
    try:
        file.pwritev([f"sealog format {FORMAT_VERSION}\n".encode()], 0)
        file.flush()
    finally:
        file.close()
    disk.rename(MARKER + ".new", MARKER)
    disk.flush_dir("")
