"""Scenarios as texts: lines that begin with "> " are done, what follows each is what the nodes say to it.

    python -m tests.raftish.transcript        write the answers in transcripts/*.txt anew

    > nodes 1 2 3 [learners 4] [spare 5]      a new group; spare nodes run and are no members yet
    > pass MS                                 time passes on all nodes, in ticks of 10 ms; nothing is delivered
    > timeout N                               time passes on node N alone until it stands for election
    > deliver [A B]                           all messages (of that link) arrive, and what they cause, until quiet
    > lose [A B]                              all messages (of that link) that are under way are lost
    > flush [N]                               everything written (by node N) is durable
    > hold N | release N                      node N's writes become durable by `flush` alone | at once (the begin)
    > cut A B | heal                          nothing passes from A to B | everything passes again
    > crash N | start N                       with what was durable
    > propose N TEXT... | read N NAME | transfer N TARGET | add N X | promote N X | remove N X
    > compact N                               the log up to the commit index goes
    > install N                               the snapshot asked for is there
    > log N                                   what the log holds

Election timeouts are 100 ms, and 20 ms more for each node of a higher id; heartbeats come every 30 ms.
"""

from __future__ import annotations

from pathlib import Path

from raftish.config import Config
from raftish.core import NotLeader, NotNow, Raft, Role
from raftish.entries import Kind
from raftish.membership import Change, ChangeRefused, Membership, Step, decode
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    PreVoteRequest,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
)
from tests.raftish.world import Disk, View

FOLDER = Path(__file__).parent / "transcripts"
CONFIG = Config(election_timeout_ms=100, heartbeat_ms=30, retry_ms=60, clock_drift=0.25, max_message_bytes=64)
STEPS = {"add": Step.ADD_LEARNER, "promote": Step.PROMOTE, "remove": Step.REMOVE}


def show_entry(entry):
    if entry.kind is Kind.NOOP:
        return f"{entry.term}/{entry.index}:-"
    if entry.kind is Kind.MEMBERSHIP:
        return f"{entry.term}/{entry.index}:[{show_members(decode(entry.payload))}]"
    return f"{entry.term}/{entry.index}:{entry.payload.decode()}"


def show_members(membership):
    voters = " ".join(map(str, sorted(membership.voters)))
    learners = " ".join(map(str, sorted(membership.learners)))
    return f"{voters} learners {learners}" if learners else voters


def show(message):
    kind = type(message)
    head = f"{message.source} -> {message.target} {kind.__name__} term {message.term}"
    if kind in (PreVoteRequest, VoteRequest):
        head += f" last {message.last_term}/{message.last_index}"
        return head + (" transfer" if kind is VoteRequest and message.transfer else "")
    if kind is AppendRequest:
        entries = " ".join(map(show_entry, message.entries))
        return f"{head} after {message.prev_term}/{message.prev_index} commit {message.commit} {entries}".rstrip()
    if kind is AppendResponse:
        if message.success:
            return f"{head} up to {message.index}"
        return f"{head} refused {message.index} hint {message.hint_term}/{message.hint_index}"
    if kind is Heartbeat:
        return f"{head} round {message.round} commit {message.commit}"
    if kind is HeartbeatResponse:
        return f"{head} round {message.round}"
    if kind is SnapshotRequest:
        return f"{head} at {message.index_term}/{message.index} [{show_members(message.membership)}]"
    if kind is TimeoutNow:
        return head
    return head + (" yes" if message.granted else " no")


class Scene:
    def __init__(self):
        self.said = []
        self.disks = {}
        self.nodes = {}
        self.clocks = {}
        self.roles = {}
        self.commits = {}
        self.held = set()
        self.blocked = set()
        self.under_way = []
        self.asked = {}

    def do(self, line):
        """What the nodes say to one command."""
        self.said = []
        word, *args = line.split()
        getattr(self, f"do_{word}")(*args)
        return self.said

    def say(self, line):
        self.said.append(line)

    # Nodes.

    def do_nodes(self, *words):
        names = {"voters": [], "learners": [], "spare": []}
        current = "voters"
        for word in words:
            if word in names:
                current = word
            else:
                names[current].append(int(word))
        first = Membership(frozenset(names["voters"]), frozenset(names["learners"]))
        for name in sorted(names["voters"] + names["learners"] + names["spare"]):
            self.disks[name] = Disk(first)
            self.clocks[name] = 0
            self.do_start(name)

    def do_start(self, name):
        name = int(name)
        disk = self.disks[name]
        self.roles[name] = (Role.FOLLOWER, disk.hard_state.term)
        self.commits[name] = disk.base
        self.nodes[name] = Raft(
            name,
            CONFIG,
            View(disk),
            disk.hard_state,
            disk.known_members(),
            lambda: (name - 1) * 0.2,
            self.clocks[name],
        )
        self._drain(name)

    def do_crash(self, name):
        del self.nodes[int(name)]
        self.disks[int(name)].pending.clear()

    def _drain(self, name):
        raft, disk = self.nodes[name], self.disks[name]
        while True:
            output = raft.take_output()
            role = (raft.role, raft.term)
            if role != self.roles[name]:
                self.roles[name] = role
                self.say(f"{name}: {raft.role.value} in term {raft.term}")
            if output.truncate_from is not None:
                self.say(f"{name}: truncates from {output.truncate_from}")
            if output.entries:
                self.say(f"{name}: writes {' '.join(map(show_entry, output.entries))}")
            if output.commit != self.commits[name]:
                self.commits[name] = output.commit
                self.say(f"{name}: commit {output.commit}")
            for ready in output.reads:
                outcome = (
                    "is not answered here" if ready.index is None else f"may be answered at {ready.index}"
                )
                self.say(f"{name}: read {ready.context} {outcome}")
            for message in output.messages:
                blocked = (message.source, message.target) in self.blocked
                self.say(f"  {show(message)}{'  (cut)' if blocked else ''}")
                if not blocked:
                    self.under_way.append(message)
            if output.restore is not None:
                self.asked[name] = output.restore
                self.say(f"{name}: wants the state at {output.restore.index}")
            if output.seq:
                disk.pending.append(output)
            if name in self.held or not disk.pending:
                return
            raft.persisted(disk.settle(len(disk.pending)), self.clocks[name])

    def do_hold(self, name):
        self.held.add(int(name))

    def do_release(self, name):
        self.held.discard(int(name))
        self.do_flush(name)

    def do_flush(self, *names):
        for name in map(int, names or sorted(self.nodes)):
            disk = self.disks[name]
            if disk.pending:
                self.nodes[name].persisted(disk.settle(len(disk.pending)), self.clocks[name])
            self._drain(name)

    # Time and links.

    def do_pass(self, duration_ms):
        for _ in range(int(duration_ms) // 10):
            for name, raft in sorted(self.nodes.items()):
                self.clocks[name] += 10
                raft.tick(self.clocks[name])
                self._drain(name)

    def do_timeout(self, name):
        name = int(name)
        raft = self.nodes[name]
        while raft.role in (Role.FOLLOWER, Role.LEADER):
            self.clocks[name] += 10
            raft.tick(self.clocks[name])
        self._drain(name)

    def _take(self, link):
        wanted = tuple(map(int, link))
        taken = [m for m in self.under_way if not link or (m.source, m.target) == wanted]
        self.under_way = [m for m in self.under_way if m not in taken]
        return taken

    def do_deliver(self, *link):
        while taken := self._take(link):
            for message in taken:
                if message.target in self.nodes:
                    self.nodes[message.target].step(message, self.clocks[message.target])
                    self._drain(message.target)

    def do_lose(self, *link):
        self._take(link)

    def do_cut(self, source, target):
        self.blocked.add((int(source), int(target)))

    def do_heal(self):
        self.blocked.clear()

    # Users.

    def _use(self, name, action, *args):
        name = int(name)
        try:
            getattr(self.nodes[name], action)(*args, self.clocks[name])
        except (NotLeader, NotNow, ChangeRefused) as error:
            self.say(f"{name}: {type(error).__name__}: {error}")
        self._drain(name)

    def do_propose(self, name, *texts):
        self._use(name, "propose", [text.encode() for text in texts])

    def do_read(self, name, context):
        self._use(name, "read", context)

    def do_transfer(self, name, target):
        self._use(name, "transfer", int(target))

    def do_add(self, name, node):
        self._use(name, "change_members", Change(Step.ADD_LEARNER, int(node)))

    def do_promote(self, name, node):
        self._use(name, "change_members", Change(Step.PROMOTE, int(node)))

    def do_remove(self, name, node):
        self._use(name, "change_members", Change(Step.REMOVE, int(node)))

    def do_compact(self, name):
        self.disks[int(name)].compact(self.commits[int(name)])

    def do_install(self, name):
        name = int(name)
        self.disks[name].install(self.asked.pop(name))
        self.nodes[name].snapshot_installed(self.clocks[name])
        self._drain(name)

    def do_log(self, name):
        disk = self.disks[int(name)]
        waiting = [entry for output in disk.pending for entry in output.entries]
        durable = f"{name}: durable {' '.join(map(show_entry, disk.entries)) or 'nothing'}"
        self.say(durable + (f", not yet {' '.join(map(show_entry, waiting))}" if waiting else ""))


def replay(text):
    """The text with the answers that the nodes give now."""
    scene = Scene()
    lines = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *scene.do(line[2:])]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main():
    for path in sorted(FOLDER.glob("*.txt")):
        path.write_text(replay(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
