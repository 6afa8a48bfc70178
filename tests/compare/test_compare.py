"""sealog's answers beside Apache Kafka's: equal, or different on purpose.

One test: two servers are started for it, and what it says of the whole needs every case. `./run compare -k` runs some.
"""

import pytest

from tests.clients.raw_kafka import RawKafka
from tests.compare import all_cases  # noqa: F401  (it registers them)
from tests.compare.cases import CASES, served, some
from tests.compare.differences import DIFFERENCES, on_purpose
from tests.compare.report import Report
from tests.compare.servers import Servers
from wire.apis import APIS


@pytest.mark.timeout(1_800)
def test_answers_are_alike_or_different_on_purpose(servers: Servers) -> None:
    report = Report()
    for case in CASES:
        try:
            report.outcomes.append(servers.run(case))
        except AssertionError as error:
            report.failed[case.id] = str(error)
    assert report.is_good, "\n".join(report.lines())

    met = {each for outcome in report.outcomes for found in outcome.found for each in on_purpose(found)}
    assert [each for each in DIFFERENCES if each not in met] == [], "differences that no case meets"

    # Every API in the lowest, the middle and the highest version that both serve: as Apache Kafka announces them.
    with RawKafka(servers.kafka.address) as kafka:
        answer = kafka.call("api_versions", 3, client_software_name="compare", client_software_version="1")
    served_there = {each.api_key: each.max_version for each in answer.api_keys}
    asked = {each for outcome in report.outcomes for each in outcome.asked}
    missing = {}
    for api in APIS.values():
        if not api.is_private:
            assert served(api.module)[-1] == min(api.max_version, served_there[api.key]), api.name
            missing[api.name] = [each for each in some(api.module) if (api.module, each) not in asked]
    assert {name: versions for name, versions in missing.items() if versions} == {}
