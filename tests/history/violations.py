"""What a history can be guilty of."""

from dataclasses import dataclass

LOST_COMMIT = "an acknowledged commit is not wholly there"
LOST_PLAIN = "an acknowledged record is not there"
ABORTED_VISIBLE = "a record of an aborted transaction is visible"
TORN = "a transaction is there in part"
CONTRADICTION = "commit and abort of one transaction were both acknowledged"
DUPLICATE = "a record is there twice"
STRANGER = "a record is there that nobody sent"
MISPLACED = "a record is in another partition than it was sent to"
DISORDER = "a producer's records are not in the order of its sends"
OFFSETS_BACK = "a reader's offsets do not increase"
RETRACTED = "what a reader saw is not there any more"
BLOCKED = "the last stable offset stays behind the high watermark though nothing is open"
UNREADABLE = "a reader's position does not reach the end"
MARKERS = "a partition has more offsets than records were sent to it"
UNUSABLE = "a transactional id cannot be used any more"
WRONG_OFFSET = "a group's committed offset is not that of its last committed transaction"
MOVED = "a record is at another offset than its producer was told"
SKIPPED = "a reader was led past a record that is there"
GHOST = "a reader got a record that is not there"
WENT_BACK = "an offset that only grows went back"
BEHIND = "a high watermark is below what was acknowledged before"
UNDECIDED = "a reader got past a record before its transaction was asked to commit"
HELD_BACK = "the last stable offset stays at a transaction that is over"
TORN_IN_TIME = "a transaction was visible in one partition and still undecided in another"
FENCED_COMMIT = "a producer that was fenced before it asked committed a transaction"
FENCED_WRITE = "a record is there that a fenced producer sent"
STALE_OFFSET = "a group's committed offset was read that is older than one committed before"
GAP = "the transactions that moved a group's offset do not follow each other"
TWICE = "a record was processed twice by an exactly-once loop"
UNPROCESSED = "a group's offset is past a record that its exactly-once loop did not process"
G0 = "G0: transactions wrote keys in a circle"
G1A = "G1a: a transaction read what an aborted one wrote"
G1B = "G1b: a transaction read what another one wrote over itself"
G1C = "G1c: transactions wrote and read in a circle"
LOST_UPDATE = "lost update: two transactions read one version of a key, and both wrote after it"
CYCLE = "transactions read and wrote in a circle"
NOT_A_PREFIX = "a transaction read values of a key in another order than they have"


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
