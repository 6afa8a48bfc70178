"""What is built of ranges with groups of their own, together: a node comes to ranges whose begin is gone, and open
transactions live through moves."""

from __future__ import annotations

from tests.cluster.sim_ranges import Operator, SimRanges, Writer
from tests.cluster.sim_transactors import PARTITIONS, Transactor, all_seen, check, check_replicas, headers
from tests.cluster.test_ranges_moves import at_rest, holders
from tests.cluster.test_ranges_retention import SMALL, check_content, delete_at_leader, write
from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode


def test_a_node_comes_to_ranges_whose_begin_is_gone():
    cluster = SimRanges(31, **SMALL)
    cluster.create_topic("t", 3)
    writers = [Writer(cluster, "t", partition) for partition in range(3)]
    for writer in writers:
        write(writer, 40)
        assert delete_at_leader(cluster, "t", writer.partition, 25) == 25
    cluster.advance(500)
    first = min(
        hosted.replica.first_index
        for one in cluster.members.values()
        for hosted in one.hosting.hosted.values()
    )
    assert first > 1, "entries are gone on every node"
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    operator.wants("remove", 1)
    operator.finish()
    cluster.run_until(lambda: at_rest(cluster), max_ms=120_000)
    assert all(one == {0, 2, 3} for one in holders(cluster).values())
    for hosted in cluster.members[3].hosting.hosted.values():
        assert hosted.replica.first_index > 1, "it has fetched segments"
    for writer in writers:
        write(writer, 3)
        assert check_content(cluster, writer, 25) == len(writer.acked)


def test_transactions_go_on_while_replicas_move():
    cluster = SimRanges(32)
    cluster.create_topic("t", 6)
    transactors = [Transactor(cluster, f"x{n}", "t", PARTITIONS, 1 + n % 2) for n in range(3)]
    operator = Operator(cluster)
    for event, node in (("add", 3), ("remove", 0)):
        operator.wants(event, node)
    cluster.come(3, [1, 2])
    under_way = {transactor: transactor.steps() for transactor in transactors}
    done = 0
    while operator.wanted or done < 40 or not at_rest(cluster):
        operator.step()
        transactor = cluster.rng.choice(transactors)
        if next(under_way[transactor], "over") == "over":
            under_way[transactor] = transactor.steps()
            done += 1
    for steps in under_way.values():
        for _ in steps:
            pass
    assert all(one == {1, 2, 3} for one in holders(cluster).values())
    seen = all_seen(cluster)
    check(transactors, seen)
    assert all(len(one.committed) > 5 for one in transactors)
    for node in (1, 2, 3):
        cluster.cut_power(node)
    cluster.heal()
    assert all_seen(cluster) == seen
    check_replicas(cluster, seen)


def outcome_records(cluster):
    """(aborted ranges, what is resolved) on record, as the controller has them."""
    view = cluster.controller().metadata.view
    return [[key for key, _ in view.scan(prefix)] for prefix in (keys.ABORTED, keys.RESOLVED)]


def test_records_of_outcomes_go_with_the_data_they_speak_of():
    cluster = SimRanges(33, **SMALL)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, 2)
    for _ in range(12):
        transactor.run(False)
        transactor.run(True)
    cluster.run_until(lambda: not headers(cluster))
    aborted, resolved = outcome_records(cluster)
    assert len(aborted) > 10
    assert resolved
    # All that partition 0 has is deleted: the others' ranges stay.
    delete_at_leader(cluster, "t", 0, -1)
    cluster.advance(500)
    left = outcome_records(cluster)[0]
    assert [key for key in aborted if keys.parse_aborted(key)[1] != 0] == left
    assert len(left) < len(aborted)
    answer = None
    while answer is None:
        answer = cluster.ask(
            cluster.controller().node_id, ApiKey.DELETE_TOPICS, 4, topic_names=("t",), timeout=1000
        )
    assert answer.responses[0].error_code is ErrorCode.none
    cluster.run_until(lambda: outcome_records(cluster) == [[], []])
