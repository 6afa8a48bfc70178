"""sealog's answers beside Apache Kafka's: equal, or different on purpose."""

import pytest

from tests.clients.raw_kafka import RawKafka
from tests.compare import all_cases  # noqa: F401  (it registers them)
from tests.compare.cases import CASES, Case, served, some
from tests.compare.differences import DIFFERENCES, Difference, on_purpose
from tests.compare.servers import Servers
from wire.apis import APIS

_ran: set[str] = set()
_asked: set[tuple[str, int]] = set()
_met: set[Difference] = set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_answers_are_alike(servers: Servers, case: Case) -> None:
    _ran.add(case.id)
    outcome = servers.run(case)
    _asked.update(outcome.asked)
    for each in outcome.found:
        _met.update(on_purpose(each))
    unlike = [str(each) for each in outcome.found if not on_purpose(each)]
    assert not unlike, "\n".join(["", *unlike])


def all_cases_ran() -> None:
    missing = {case.id for case in CASES} - _ran
    if missing:
        pytest.skip(f"only a part of the cases ran, {len(missing)} did not: nothing can be said of the whole")


def test_every_difference_is_met() -> None:
    all_cases_ran()
    assert [each for each in DIFFERENCES if each not in _met] == []


def test_every_api_is_compared_in_its_lowest_middle_and_highest_version(servers: Servers) -> None:
    """Of the versions that both serve: what `KAFKA_HIGHEST` says is held to what Apache Kafka announces."""
    all_cases_ran()
    with RawKafka(servers.kafka.address) as kafka:
        answer = kafka.call("api_versions", 3, client_software_name="compare", client_software_version="1")
    served_there = {each.api_key: each.max_version for each in answer.api_keys}
    missing = {}
    for api in APIS.values():
        if api.is_private:
            continue
        assert served(api.module)[-1] == min(api.max_version, served_there[api.key]), api.name
        missing[api.name] = [each for each in some(api.module) if (api.module, each) not in _asked]
    assert {name: versions for name, versions in missing.items() if versions} == {}
