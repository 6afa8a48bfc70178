"""The process that compacts: `python -m storage.compaction_worker ROOT` reads a job and answers with its outcome.

A process of its own keeps the decoding of records off the broker's loop; it is nice to others, and ends with its job.
Both ways are msgpack. Exit code 1: it failed, and says why on stderr.
"""

from __future__ import annotations

import os
import sys

import msgspec

from storage.compaction_job import Job
from storage.compaction_rewrite import rewrite
from storage.format import CorruptLog
from storage.real_disk import RealDisk
from wire.errors import KafkaError

NICENESS = 10


def main() -> int:
    os.nice(NICENESS)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    disk = RealDisk(sys.argv[1], lambda callback, *args: callback(*args))
    try:
        outcome = rewrite(disk, job)
    except (CorruptLog, KafkaError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    finally:
        disk.close()
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
