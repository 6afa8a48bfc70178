"""What a comparison found, for people: a line per API, the deliberate differences, and what nobody expected."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.compare.compared import Found
from tests.compare.differences import Difference, on_purpose
from tests.compare.servers import Outcome
from wire.apis import APIS

_NAMES = {api.module: api.name for api in APIS.values()}


class Report:
    """Outcomes of cases, gathered one by one. `failed`: cases that one of the two did not answer, and how."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.failed: dict[str, str] = {}

    @property
    def unexpected(self) -> list[Found]:
        return [each for outcome in self.outcomes for each in outcome.found if not on_purpose(each)]

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.unexpected

    def lines(self) -> Iterator[str]:
        yield from self._apis()
        yield from self._differences()
        yield from self._unexpected()
        yield ""
        cases = len(self.outcomes) + len(self.failed)
        equal = sum(not outcome.found for outcome in self.outcomes)
        wrong = {each.case for each in self.unexpected} | set(self.failed)
        yield (
            f"{cases} cases: {equal} equal in every field, {cases - equal - len(wrong)} different on purpose, "
            f"{len(wrong)} unexpected"
        )

    def _apis(self) -> Iterator[str]:
        """A case counts for every API that it asks."""
        yield f"{'API':<26}{'versions':>10}{'cases':>8}{'equal':>8}{'on purpose':>12}{'unexpected':>12}"
        by_api: dict[str, list[Outcome]] = defaultdict(list)
        versions: dict[str, set[int]] = defaultdict(set)
        for outcome in self.outcomes:
            for api, version in outcome.asked:
                versions[api].add(version)
            for api in {api for api, _ in outcome.asked}:
                by_api[api].append(outcome)
        for api in (api for api in _NAMES if api in by_api):
            equal = wanted = unexpected = 0
            for outcome in by_api[api]:
                found = [each for each in outcome.found if each.api == api]
                if not found:
                    equal += 1
                elif all(map(on_purpose, found)):
                    wanted += 1
                else:
                    unexpected += 1
            asked = f"{min(versions[api])}-{max(versions[api])}"
            cases = len(by_api[api])
            yield f"{_NAMES[api]:<26}{asked:>10}{cases:>8}{equal:>8}{wanted:>12}{unexpected:>12}"

    def _differences(self) -> Iterator[str]:
        met: dict[tuple[str, str], dict[Difference, set[str]]] = defaultdict(lambda: defaultdict(set))
        for outcome in self.outcomes:
            for each in outcome.found:
                for difference in on_purpose(each):
                    met[difference.api, difference.reason][difference].add(each.case)
        if met:
            yield "\nDifferent on purpose"
        for (api, reason), differences in met.items():
            yield f"\n  {_NAMES[api]}: {reason}"
            for one, cases in differences.items():
                where = sorted(cases)
                more = f" and {len(where) - 1} more" if len(where) > 1 else ""
                yield f"    {one.field}: Apache Kafka {one.kafka!r}, sealog {one.sealog!r} ({where[0]}{more})"

    def _unexpected(self) -> Iterator[str]:
        if not self.is_good:
            yield "\nUnexpected"
        yield from _by_case(self.unexpected)
        for case, error in self.failed.items():
            yield f"\n  {case}"
            yield f"    {error}"


def _by_case(found: Iterable[Found]) -> Iterator[str]:
    last = None
    for each in found:
        if each.case != last:
            yield f"\n  {each.case}"
        last = each.case
        yield f"    {each}"
