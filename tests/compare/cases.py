"""The register of cases: functions of one server, run on both."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.compare.side import Side
from wire.apis import APIS

Body = Callable[[Side, int], None]


class Case(NamedTuple):
    name: str
    version: int
    run: Body

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


CASES: list[Case] = []

_BY_NAME = {api.module: api for api in APIS.values()}


KAFKA_HIGHEST = {"init_producer_id": 5}
"""The APIs of which Apache Kafka 4.3.1 serves fewer versions than sealog: version 6 is not released there."""


def served(api: str) -> range:
    """The versions of an API that both answer."""
    spec = _BY_NAME[api]
    return range(spec.min_served, KAFKA_HIGHEST.get(api, spec.max_version) + 1)


def some(api: str) -> list[int]:
    """The lowest, the middle and the highest version."""
    versions = served(api)
    return sorted({versions[0], versions[len(versions) // 2], versions[-1]})


def case(versions: Iterable[int] = (0,)) -> Callable[[Body], Body]:
    """Register a case for each of these versions, which it is handed."""

    def register(run: Body) -> Body:
        CASES.extend(Case(run.__name__, version, run) for version in versions)
        return run

    return register
