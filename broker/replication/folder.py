"""The marker of a cluster's data folder: which node it is of. A folder of another make is refused, never touched."""

from __future__ import annotations

from broker.data_folder import ForeignFolder
from storage.disk import Disk
from storage.files import ancestors

MARKER = "CLUSTER"
REMOVED = "REMOVED"
FORMAT_VERSION = 1
REMOVED_LINE = "this node was removed from its cluster: it serves no more, and its folder is of no use"
OF_RANGES = "cluster of ranges"
"""The kind of folder of a node whose ranges have groups of their own."""


def claim(disk: Disk, node_id: int, kind: str = "cluster") -> None:
    """Check the marker; write it into an empty folder. `kind`: of what make the folder is.

    Raises:
        ForeignFolder: the folder is of a broker alone, of another node, of another format, or holds something else.
    """
    line = f"sealog {kind} format {FORMAT_VERSION} node {node_id}"
    if disk.exists(MARKER):
        file = disk.open_readonly(MARKER)
        try:
            text = file.pread(128, 0).decode("ascii", "replace").strip()
        finally:
            file.close()
        if text != line:
            raise ForeignFolder(f"its marker says {text!r}, not {line!r}")
        if disk.exists(REMOVED):
            raise ForeignFolder(
                f"node {node_id} was removed from its cluster while it had this folder; to come back it needs an empty "
                f"one, and `sealog cluster add`{' under another number' if kind == OF_RANGES else ''}"
            )
        return
    new = MARKER + ".new"
    strangers = [name for name in disk.list("") if name not in (new, "lock")]
    if strangers:
        raise ForeignFolder(
            f"it holds {strangers[0]!r} and {len(strangers) - 1} more: a cluster begins with empty folders"
        )
    if disk.exists(new):
        disk.remove(new)
    file = disk.open(new, create=True)
    try:
        file.pwritev([line.encode() + b"\n"], 0)
        file.flush()
    finally:
        file.close()
    disk.rename(new, MARKER)
    disk.flush_dir("")


def note_removed(disk: Disk) -> None:
    """Blocks until it is durable that the folder's node is out: no start takes the folder any more. Raises OSError."""
    if not disk.exists(REMOVED):
        disk.open(REMOVED, create=True).close()
        disk.flush_dir("")


def make_dir_durable(disk: Disk, directory: str) -> None:
    """Blocks until the folder and all above it are on the device."""
    disk.make_dir(directory)
    for path in ancestors(directory):
        disk.flush_dir(path)
