"""Brokers that are wrong on purpose where ranges are split and merged: each is a context manager."""

from __future__ import annotations

from unittest.mock import PropertyMock, patch

from broker.ranges import lineage
from broker.ranges.controller import Controller
from broker.ranges.participants import Participants
from broker.ranges.settling import Reports
from storage import ancestry
from storage.ancestry import Parent
from storage.numbered_chain import NumberedChain
from storage.replica import RangeReplica


def takes_data_behind_its_end():
    """S1: nothing is written to what other ranges have taken over."""
    return patch.object(RangeReplica, "is_retiring", PropertyMock(return_value=False))


def begins_from_parents_that_have_not_ended():
    """A node makes its replica of a child from what it has of the parents at that moment."""

    def mutant(self):
        ends = {log.partition: log.high_watermark for log in self._partitions if log.high_watermark}
        sealed = [one for one in self._segments if one.state == "SEALED"]
        return Parent((self.first, self.last), sealed, self.ancestry, ends) if sealed else None

    return patch.object(NumberedChain, "as_parent", mutant)


def succeeds_parents_that_have_not_ended():
    """The children's records come with the wish."""
    return patch.object(lineage, "has_ended", lambda record, led: led is not None)


def forgets_what_a_transaction_wrote_to_a_parent():
    """The coordinator asks the ranges that there are now, and nobody else."""
    groups = Participants._groups

    def mutant(self, transaction):
        found = groups(self, transaction)
        return {group: terms for group, terms in found.items() if not self._topics.ranges[group].retired}

    return patch.object(Participants, "_groups", mutant)


def forgets_parents_that_transactions_need():
    return patch.object(Controller, "_is_needed", lambda self, group: False)


def forgets_parents_before_all_have_the_children():
    return patch.object(lineage, "is_over", lambda record, ranges, leds: record.retired)


def forgets_the_outcomes_of_what_the_children_have():
    """T8: settled outcomes live as long as the data."""
    return patch.object(lineage, "alive", set)


def resolves_in_the_last_segment_alone():
    """A replica that has not got that one yet takes what is committed in those before for aborted."""
    of = Reports._of

    def mutant(self, partition):
        index, limit, is_all, segments, ranges = of(self, partition)
        return [index, limit, is_all, segments[-1:], ranges]

    return patch.object(Reports, "_of", mutant)


def begins_in_the_first_term():
    """Leader epochs fall where a range succeeds another one."""
    succeeded = lineage.succeeded

    def mutant(parents, leds, now_ms):
        retired, children = succeeded(parents, leds, now_ms)
        return retired, {group: lineage.replace(one, base_term=1) for group, one in children.items()}

    return patch.object(lineage, "succeeded", mutant)


def lists_ancestors_as_the_parents_come():
    """S2: of ranges that share segments, one may have dropped some that the other has."""
    of_child = ancestry.of_child

    def mutant(parents, first, last):
        found, paths = of_child(parents, first, last)
        return ancestry.Ancestry(tuple(reversed(found.segments)), found.ends, found.lasts), paths

    return patch.object(ancestry, "of_child", mutant)


MUTANTS = {
    takes_data_behind_its_end: (0, 30),
    begins_from_parents_that_have_not_ended: (0, 30),
    succeeds_parents_that_have_not_ended: (0, 30),
    forgets_what_a_transaction_wrote_to_a_parent: (0, 40),
    forgets_parents_that_transactions_need: (0, 60),
    forgets_parents_before_all_have_the_children: (0, 60),
    forgets_the_outcomes_of_what_the_children_have: (0, 40),
    resolves_in_the_last_segment_alone: (20, 60),
    begins_in_the_first_term: (0, 30),
    lists_ancestors_as_the_parents_come: (0, 30),
}
"""With the first seed and the number of seeds in which each is found."""
