"""`sealog dump`: what the files of a data folder hold, or one copied out of it. Reads only, without a broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click

from broker import dump_metadata, dump_segment, dump_text
from broker.dump_segment import Item, Outcomes, Wanted
from storage.disk import Disk
from storage.format import SETTLED_SUFFIX, parse_name
from storage.real_disk import RealDisk
from storage.scan import ScannedEntry
from txn.metastore import frames

_SEGMENT_MAGIC = b"SEALOGSG"
_SETTLED_MAGIC = b"SEALOGST"
_TOPIC_FOLDER = re.compile(r"(.+)\.[0-9a-f]{32}")
_METADATA_FILE = re.compile(r"(log|snapshot)-\d{10}")


@click.command()
@click.argument("paths", metavar="FILE|DIR/TOPIC|DIR/metadata...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="An object per line, complete.")
@click.option("--records", is_flag=True, help="The records of the batches, too.")
@click.option("--partition", metavar="P", type=click.IntRange(min=0), help="Of this partition alone.")
@click.option(
    "--from-offset", metavar="N", type=click.IntRange(min=0), default=0, help="From this offset on."
)
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="At most so many batches.")
def dump(
    paths: tuple[str, ...],
    as_json: bool,
    records: bool,
    partition: int | None,
    from_offset: int,
    limit: int | None,
) -> None:
    """Show what segment files, sidecars and files of the metadata store hold; exits with 1 if one is damaged.

    DIR is a data folder. Files of a running broker can be looked at, too, and so can a file that was copied elsewhere.
    """
    wanted = Wanted(partition, from_offset, limit, records)
    damaged = False
    for path in [file for given in paths for file in _files(Path(given))]:
        try:
            for item in _items(path, wanted):
                shown = json.dumps(item, ensure_ascii=True) if as_json else dump_text.line(item)
                problem = item["kind"] == "problem"
                damaged = damaged or (problem and item["damaged"])
                click.echo(shown, err=problem and not as_json)
        except BrokenPipeError:
            raise  # whoever reads has seen enough
        except OSError as error:
            raise click.ClickException(f"{path}: {error.strerror or error}") from error
    if damaged:
        raise SystemExit(1)


def _files(given: Path) -> list[Path]:
    """The files that are meant, segments by their ids: parents before children."""
    folder = given
    if given.is_file():
        return [given]
    if not given.exists():
        topics = given.parent / "topics"
        named = [
            one
            for one in (topics.iterdir() if topics.is_dir() else ())
            if (match := _TOPIC_FOLDER.fullmatch(one.name)) is not None and match[1] == given.name
        ]
        if not named:
            raise click.ClickException(f"{given} is no file, and no topic of a data folder")
        folder = named[0]
    found = []
    for one in sorted(folder.iterdir()):
        parsed = parse_name(one.name)
        segment = parsed is not None and parsed.suffix == ".seg"
        if segment or _METADATA_FILE.fullmatch(one.name):
            found.append(one)
    if not found:
        raise click.ClickException(f"{given} has no segments")
    return found


def _items(path: Path, wanted: Wanted) -> Iterator[Item]:
    disk = RealDisk(str(path.parent), lambda callback, *args: callback(*args), make=False)
    file = disk.open_readonly(path.name)
    try:
        magic = file.pread(8, 0)
        if magic == _SETTLED_MAGIC or path.name.endswith(SETTLED_SUFFIX):
            items = dump_segment.dump_settled(path.name, file.pread(file.size(), 0))
        elif magic == frames.FILE_MAGIC or _METADATA_FILE.fullmatch(path.name):
            items = dump_metadata.dump_metadata_file(disk, path.name)
        else:
            items = dump_segment.dump_segment(disk, path.name, wanted, _outcomes(path))
    finally:
        file.close()
    for item in items:
        if "path" in item:
            item["path"] = str(path.parent / item["path"])
        yield item


def _outcomes(path: Path) -> Outcomes:
    """What the metadata store says, where the file lies in a data folder; read when it is asked for, and once."""
    root = path.resolve().parent.parent.parent
    if not (root / "metadata").is_dir():
        return dump_metadata.no_outcomes
    disk: Disk = RealDisk(str(root), lambda callback, *args: callback(*args), make=False)
    known: list[Outcomes] = []

    def outcome(entry: ScannedEntry, segment_id: int) -> str:
        if not known:
            known.append(dump_metadata.outcomes_of(disk, "metadata"))
        return known[0](entry, segment_id)

    return outcome
