"""The report counts what is equal, what is different on purpose, and what nobody expected."""

from tests.compare.compared import Found
from tests.compare.report import Report
from tests.compare.servers import Outcome

ASKED = frozenset({("describe_groups", 0), ("describe_groups", 5), ("heartbeat", 1)})
ON_PURPOSE = Found(
    "a-v0", 1, "describe_groups", 5, "groups[g].members[m].client_host", "/127.0.0.1", "127.0.0.1"
)
UNEXPECTED = Found("b-v0", 2, "heartbeat", 1, "error_code", "none", "unknown_member_id")


def row(report: Report, api: str) -> list[str]:
    return next(line.split() for line in report.lines() if line.startswith(f"{api} "))


def test_what_is_equal_or_different_on_purpose_is_good() -> None:
    report = Report()
    report.outcomes += [Outcome("a-v0", ASKED, [ON_PURPOSE]), Outcome("b-v0", ASKED, [])]
    assert report.is_good
    assert row(report, "DescribeGroups") == ["DescribeGroups", "0-5", "2", "1", "1", "0"]
    assert row(report, "Heartbeat") == ["Heartbeat", "1-1", "2", "2", "0", "0"]
    assert list(report.lines())[-1] == "2 cases: 1 equal in every field, 1 different on purpose, 0 unexpected"


def test_one_unexpected_difference_is_told_with_both_answers() -> None:
    report = Report()
    report.outcomes += [Outcome("a-v0", ASKED, [ON_PURPOSE]), Outcome("b-v0", ASKED, [UNEXPECTED])]
    assert not report.is_good
    assert row(report, "Heartbeat") == ["Heartbeat", "1-1", "2", "1", "0", "1"]
    text = "\n".join(report.lines())
    assert (
        "  b-v0\n    step 2, heartbeat v1 error_code: Apache Kafka 'none', sealog 'unknown_member_id'" in text
    )


def test_no_answer_is_unexpected() -> None:
    report = Report()
    report.outcomes.append(Outcome("a-v0", ASKED, []))
    report.failed["b-v0"] = "kafka: no answer to step 3"
    assert not report.is_good
    assert list(report.lines())[-1].endswith("1 equal in every field, 0 different on purpose, 1 unexpected")
