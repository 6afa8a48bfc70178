"""`sealog cluster ...`: records of nodes, what the handler answers, and what people see."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from dataclasses import asdict

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.sim_node import SimNode

from broker import cluster_commands
from broker.call import Call
from broker.cli import main
from broker.cluster_picture import draw, merge
from broker.cluster_view import Broker, Leadership, RangeStatus
from broker.handlers import cluster as handler
from broker.node_registry import REPEATS, TRANSITIONS, NodeRecord, NodeRegistry, Standing, after, views
from tests.support.broker_process import BrokerProcess
from txn import keys
from wire import private_api
from wire.apis import ApiKey
from wire.cluster import Add, Drain, Node, Range, Remove, Response, Status
from wire.errors import ErrorCode, KafkaError

# -- records


@pytest.mark.parametrize("standing", [None, *Standing])
@pytest.mark.parametrize("event", ["found", "add", "start", "drain", "undrain", "remove", "emptied"])
def test_every_event_in_every_state(standing, event):
    before = None if standing is None else NodeRecord(standing.value, "a:1", "p:1", "r", 5)
    if standing in REPEATS.get(event, ()):
        assert after(before, event, 9) is before
    elif (standing, event) in TRANSITIONS:
        changed = after(before, event, 9)
        assert changed.standing is TRANSITIONS[standing, event]
        assert changed.since_ms == (5 if changed.standing is standing else 9)
    else:
        with pytest.raises(KafkaError, match=f"{event} is not possible"):
            after(before, event, 9)


def test_a_node_that_starts_says_where_it_is_and_its_age_stays():
    record = NodeRecord("UP", "a:1", "p:1", "r", 5)
    assert after(record, "start", 9, address="a:1") is record
    assert after(record, "start", 9, address="b:1") == NodeRecord("UP", "b:1", "p:1", "r", 5)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.sampled_from(["add", "start", "drain", "undrain", "remove", "emptied"])
        )
    )
)
def test_some_node_always_stays(events):
    nodes = {1: NodeRecord("UP"), 2: NodeRecord("UP")}
    store = _Store(nodes)
    registry = NodeRegistry(store, lambda: 7)
    for node, event in events:
        before = registry.all()
        try:
            registry.change(node, event)
        except KafkaError:
            assert registry.all() == before
        assert any(one.standing in (Standing.UP, Standing.JOINING) for one in registry.all().values())


class _Store:
    """As much of a store as the registry uses."""

    def __init__(self, nodes):
        self.records = {keys.cluster_node(number): (asdict(one), 1) for number, one in nodes.items()}

    def scan(self, prefix):
        return [
            (key, _Record(*found)) for key, found in sorted(self.records.items()) if key.startswith(prefix)
        ]

    def get(self, key):
        return _Record(*self.records[key]) if key in self.records else None

    def apply(self, ops):
        (put,) = ops
        assert put.expect == (self.records[put.key][1] if put.key in self.records else 0)
        self.records[put.key] = (put.value, put.expect + 1)
        return self

    lsn = 1


class _Record:
    def __init__(self, value, version):
        self.value, self.version = value, version


def test_what_placement_hears_of_nodes():
    nodes = {
        1: NodeRecord("UP", rack="a", since_ms=3),
        2: NodeRecord("DRAINING"),
        3: NodeRecord("LEAVING"),
        4: NodeRecord("JOINING"),
        5: NodeRecord("REMOVED"),
    }
    assert [(one.id, one.state, one.rack) for one in views(nodes, away=[])] == [
        (1, "up", "a"),
        (2, "draining", None),
        (3, "leaving", None),
    ]
    assert [one.state for one in views(nodes, away=[1, 2, 3])] == ["away", "away", "leaving"]


# -- the handler, on a simulated node among three


class View:
    node_id = 1

    def __init__(self, controller=1, *, fixed_members=False):
        self._controller = controller
        self.fixed_members = fixed_members

    def controller(self):
        return self._controller

    def brokers(self):
        return [Broker(number, f"n{number}", 9000 + number) for number in (1, 2, 3)]

    def away(self):
        return {3}

    def ranges(self):
        return [
            RangeStatus("metadata", (1, 2, 3), 1, 4, lag={2: 0, 3: 5_000}),
            RangeStatus("t 0-1", (1, 2, 3), 2, 6),
        ]

    def leadership(self, partition):
        return Leadership(1, 1, (1,), (1,))


@pytest.fixture
def world():
    made = SimNode()
    made.node.cluster = View()
    registry = NodeRegistry(made.node.store, made.scheduler.now_ms)
    for number in (1, 2, 3):
        registry.change(number, "found", address=f"n{number}:{9000 + number}")
    return made


def ask(world, request):
    told = []

    def deliver(buffers):
        frame = b"".join(buffers)
        told.append(private_api.decode_response(ApiKey.SEALOG_CLUSTER, frame[4:])[1])

    call = Call(ApiKey.SEALOG_CLUSTER, 0, 1, "sim", "sim", deliver, lambda reason: None)
    handler.handle(world.node, call, request)
    world.scheduler.run_until(lambda: bool(told))
    return told[0]


def test_status_has_nodes_and_ranges(world):
    found = ask(world, Status())
    assert [(one.id, one.state, one.away) for one in found.nodes] == [
        (1, "UP", False),
        (2, "UP", False),
        (3, "UP", True),
    ]
    assert found.ranges[0] == Range(
        name="metadata", replicas=(1, 2, 3), leader=1, epoch=4, lag={2: 0, 3: 5_000}
    )
    assert found.plan == ("nothing to move: every range is where it should be",)


def test_a_node_is_added_drained_and_removed_and_that_is_durable(world):
    assert ask(world, Remove(node=3)).changed
    assert "node 3 is leaving" in ask(world, Add(node=4, peer="n4:1", rack="r")).message
    registry = NodeRegistry(world.node.store, world.scheduler.now_ms)
    registry.change(3, "emptied")
    assert "a number that none had" in ask(world, Add(node=3, peer="n3:1")).message
    assert ask(world, Add(node=4, peer="n4:1", rack="r")).changed
    assert not ask(world, Add(node=4, peer="n4:1", rack="r")).changed
    dry = ask(world, Drain(node=1, dry_run=True))
    assert dry.plan[0] == "metadata: move the leader from node 1 to node 2: node 1 is draining"
    assert not dry.changed
    assert ask(world, Drain(node=1)).changed
    assert ask(world, Drain(node=1, undo=True)).changed
    world.cut_power()
    registry = NodeRegistry(world.node.store, world.scheduler.now_ms)
    states = {number: one.standing.value for number, one in registry.all().items()}
    assert states == {1: "UP", 2: "UP", 3: "REMOVED", 4: "JOINING"}
    assert registry.all()[4].rack == "r"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Drain(node=9), "the node is not known: drain is not possible"),
        (Add(node=1, peer="x:1"), "the node is up: add is not possible"),
        (Drain(node=1, undo=True, dry_run=True), None),
    ],
)
def test_what_is_not_possible_is_said(world, request_, said):
    found = ask(world, request_)
    assert (found.message, found.error) == (said, int(ErrorCode.invalid_request) if said else 0)


def test_where_members_are_fixed_only_draining_is_possible(world):
    world.node.cluster = View(fixed_members=True)
    for request in (Add(node=4, peer="n4:1"), Remove(node=3)):
        assert "are fixed" in ask(world, request).message
    assert ask(world, Drain(node=3)).changed


def test_another_node_takes_changes(world):
    world.node.cluster = View(controller=2)
    found = ask(world, Drain(node=1))
    assert (found.error, found.redirect) == (int(ErrorCode.not_controller), "n2:9002")
    world.node.cluster = View(controller=-1)
    assert ask(world, Drain(node=1)).redirect == ""


# -- the commands


class Server(threading.Thread):
    """Answers cluster requests by a function, one connection at a time; None: the connection is closed."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.answer = answer
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(4):
                    frame = stream.read(int.from_bytes(head, "big"))
                    correlation_id = int.from_bytes(frame[4:8], "big")
                    name = int.from_bytes(frame[8:10], "big")
                    request = private_api.decode_request(ApiKey.SEALOG_CLUSTER, frame[10 + name :])
                    response = self.answer(request)
                    if response is None:
                        break
                    connection.sendall(private_api.encode_response(correlation_id, response))


def run(server, *words):
    return CliRunner().invoke(main, ["cluster", *words, "--bootstrap-server", server.address])


def test_commands_follow_the_node_that_takes_changes():
    asked = []

    def controller(request):
        asked.append(request)
        return Response(changed=True, plan=("metadata: move ...",))

    there = Server(controller)
    here = Server(lambda request: Response(error=int(ErrorCode.not_controller), redirect=there.address))
    assert run(here, "drain", "3").output == "node 3 is being drained\n  metadata: move ...\n"
    assert run(here, "drain", "3", "--undo").output.startswith("node 3 takes part again")
    assert run(here, "add", "4", "--peer", "h:1", "--rack", "r", "--no-wait").output.startswith(
        "node 4 may start"
    )
    assert run(here, "remove", "3", "--no-wait").output.startswith("node 3 is leaving")
    assert asked[0] == Drain(node=3)
    assert asked[2:] == [Add(node=4, peer="h:1", rack="r"), Remove(node=3)]
    nobody = Server(
        lambda request: Response(error=int(ErrorCode.not_controller), message="no node takes changes")
    )
    refused = run(nobody, "drain", "3")
    assert refused.exit_code == 1
    assert "no node takes changes" in refused.output


def test_a_node_that_knows_no_leader_for_a_moment_is_asked_again(monkeypatch):
    answers = iter([None, None, Response(changed=True)])
    server = Server(lambda request: next(answers))
    assert run(server, "drain", "3").output == "node 3 is being drained\n"
    monkeypatch.setattr(cluster_commands, "PATIENCE_S", 0.5)
    given_up = run(Server(lambda request: None), "drain", "3")
    assert given_up.exit_code == 1
    assert "the broker closed the connection" in given_up.output


def test_status_asks_every_node_for_what_it_leads():
    gone = "127.0.0.1:1"
    nodes = []
    ranges = {
        1: Range(name="metadata", replicas=(1, 2, 3), leader=1, epoch=4, lag={3: 1_234}),
        2: Range(name="t 0-3", replicas=(1, 2), leader=2, epoch=9, learners=(3,), lag={3: 7}),
    }

    def of(number):
        stale = {1: Range(name="t 0-3", replicas=(1, 2, 3), leader=3, epoch=8), 2: ranges[1]}

        def answer(request):
            return Response(
                cluster_id="abc",
                node_id=number,
                controller=2,
                nodes=tuple(nodes),
                ranges=(ranges[number], stale[number]),
                plan=(f"as {number} has it",),
            )

        return answer

    servers = {number: Server(of(number)) for number in (1, 2)}
    nodes += [
        Node(id=1, address=servers[1].address, rack="a"),
        Node(id=2, address=servers[2].address, rack="b", state="DRAINING"),
        Node(id=3, address=gone),
    ]
    lines = run(servers[1], "status").output.splitlines()
    assert lines[0] == "cluster abc: 3 nodes, 2 ranges, node 2 takes changes"
    table = {line.split()[0]: line.split() for line in lines[3:6]}
    assert table["1"] == ["1", servers[1].address, "a", "up", "-", "1", "2", "0"]
    assert table["2"][3:] == ["draining", "-", "1", "2", "0"]
    assert table["3"][3:] == ["up,", "away", "-", "0", "2", "1,241"]
    rows = [line.split() for line in lines[8:10]]
    assert rows == [
        ["metadata", "4", "●", "○", "◐", "node", "3", "is", "1,234", "behind"],
        ["t", "0-3", "9", "○", "●", "◌", "node", "3", "is", "7", "behind"],
    ]
    assert lines[-1] == "node 3 does not answer"
    assert run(servers[1], "status", "--plan").output == "as 2 has it\n"


def test_many_ranges_are_cut_and_the_ill_ones_come_first():
    well = [Range(name=f"t {number:02}", replicas=(1,), leader=1, epoch=1) for number in range(40)]
    ill = Range(name="zz", replicas=(1,), leader=-1, epoch=1)
    seen = merge({1: Response(cluster_id="c", node_id=1, nodes=(Node(id=1),), ranges=(*well, ill))})
    short, full = draw(seen), draw(seen, every_range=True)
    assert len(full) == len(short) + 10
    assert short[6].split()[0] == "zz"
    assert "... and 11 more (--all)" in short
    assert short[-1] == "1 range without a leader"
    assert Counter("".join(full))["●"] == 41


def test_a_broker_by_itself_shows_itself_and_changes_nothing(tmp_path):
    with BrokerProcess(tmp_path / "data") as server:
        shown = run(server, "status").output
        assert "1 node, 0 ranges, node 1 takes changes" in shown
        assert server.address in shown
        refused = run(server, "drain", "1")
    assert refused.exit_code == 1
    assert "--node-id and --peers" in refused.output
