"""Two transcripts laid side by side: what differs, field by field."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.compare.normalise import Normaliser
from tests.compare.plain import Plain
from tests.compare.side import Side, Step

MISSING = "<missing>"
KEYS = (
    ("name",),
    ("topic",),
    ("topic_name",),
    ("topic_id",),
    ("resource_type", "resource_name"),
    ("api_key",),
    ("group_id",),
    ("transactional_id",),
    ("key",),
    ("member_id",),
    ("partition_index",),
    ("partition",),
    ("index",),
    ("producer_id",),
)
"""What names an element of a list. Both servers keep their answers in maps, and clients look things up by name: so the
order of named elements is not compared."""


class Found(NamedTuple):
    """One value that differs. `path`: its fields, with the names of list elements in brackets."""

    case: str
    step: int
    api: str
    version: int
    path: str
    kafka: Plain
    sealog: Plain

    def __str__(self) -> str:
        where = f"step {self.step}, {self.api} v{self.version} {self.path}"
        return f"{where}: Apache Kafka {self.kafka!r}, sealog {self.sealog!r}"


def differing(kafka: Side, sealog: Side) -> Iterator[Found]:
    """Everything in which two transcripts of a case differ."""
    theirs, ours = Normaliser(kafka), Normaliser(sealog)
    for number in range(max(len(kafka.steps), len(sealog.steps))):
        one = kafka.steps[number] if number < len(kafka.steps) else None
        other = sealog.steps[number] if number < len(sealog.steps) else None
        if one is None or other is None or (one.api, one.version) != (other.api, other.version):
            step = one or other
            assert step is not None
            yield Found(kafka.case, number, step.api, step.version, "", str(one), str(other))
            return
        pairs = (
            ("request", theirs.request(one), ours.request(other)),
            ("", theirs.answer(one), ours.answer(other)),
        )
        for path, their, our in pairs:
            yield from _unlike(kafka.case, number, one, path, their, our)


def _unlike(case: str, number: int, step: Step, path: str, kafka: Plain, sealog: Plain) -> Iterator[Found]:
    if isinstance(kafka, dict) and isinstance(sealog, dict):
        left, right = kafka, sealog
        names = [(name, f"{path}.{name}" if path else name) for name in dict.fromkeys([*left, *right])]
    elif isinstance(kafka, list) and isinstance(sealog, list):
        left, right = _keyed(kafka, sealog)
        names = [(name, f"{path}[{name}]") for name in dict.fromkeys([*left, *right])]
    else:
        if kafka != sealog or type(kafka) is not type(sealog):
            yield Found(case, number, step.api, step.version, path, kafka, sealog)
        return
    for name, at in names:
        yield from _unlike(case, number, step, at, left.get(name, MISSING), right.get(name, MISSING))


def _keyed(kafka: list[Plain], sealog: list[Plain]) -> tuple[dict[str, Plain], dict[str, Plain]]:
    """The elements by what names them, or by number where nothing does."""
    for names in KEYS:
        every = [*kafka, *sealog]
        if not every or not all(isinstance(each, dict) and set(names) <= set(each) for each in every):
            continue
        keyed = tuple(
            {" ".join(str(one[name]) for name in names): one for one in part} for part in (kafka, sealog)
        )
        if len(keyed[0]) == len(kafka) and len(keyed[1]) == len(sealog):
            return keyed[0], keyed[1]
    return (
        {str(number): each for number, each in enumerate(kafka)},
        {str(number): each for number, each in enumerate(sealog)},
    )
