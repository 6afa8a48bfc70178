"""Bytes between nodes: streams, datagrams, the handshake. What is not theirs is refused, whatever it is."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftish import codec, membership
from raftish.codec import BadMessage, Frames, decode, encode
from raftish.datagram import MAX_BEATS, MAX_DATAGRAM_BYTES, WINDOW, Gate, Sender
from raftish.entries import Entry, Kind
from raftish.handshake import Acceptor, HandshakeFailed, Initiator
from raftish.membership import MAX_MEMBERS, Membership
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**62)
HEAD = (U32, U32, U64)


@st.composite
def memberships(draw):
    ids = draw(st.lists(U32, min_size=1, max_size=MAX_MEMBERS, unique=True))
    voters = draw(st.integers(1, len(ids)))
    return Membership(frozenset(ids[:voters]), frozenset(ids[voters:]))


@st.composite
def appends(draw):
    source, target, term, prev_index = draw(U32), draw(U32), draw(U64), draw(U64)
    terms = sorted(draw(st.lists(st.integers(0, term), min_size=1, max_size=6)))
    entries = []
    for index, entry_term in enumerate(terms[1:], prev_index + 1):
        kind = draw(st.sampled_from(Kind))
        payload = (
            membership.encode(draw(memberships()))
            if kind is Kind.MEMBERSHIP
            else draw(st.binary(max_size=50))
        )
        entries.append(Entry(entry_term, index, kind, payload))
    return AppendRequest(source, target, term, prev_index, terms[0], draw(U64), tuple(entries))


MESSAGES = st.one_of(
    st.builds(PreVoteRequest, *HEAD, U64, U64),
    st.builds(PreVoteResponse, *HEAD, st.booleans()),
    st.builds(VoteRequest, *HEAD, U64, U64, st.booleans()),
    st.builds(VoteResponse, *HEAD, st.booleans()),
    appends(),
    st.builds(AppendResponse, *HEAD, st.booleans(), U64, U64, U64),
    st.builds(Heartbeat, *HEAD, U64, U64),
    st.builds(HeartbeatResponse, *HEAD, U64),
    st.builds(SnapshotRequest, *HEAD, U64, U64, memberships()),
    st.builds(TimeoutNow, *HEAD),
)


def test_every_message_has_a_number():
    assert set(codec._NUMBERS) == set(Message.__args__)


@settings(max_examples=300)
@given(U64, MESSAGES)
def test_a_message_comes_back_as_it_was(group, message):
    assert decode(encode(group, message)[4:]) == (group, message)


@settings(max_examples=100)
@given(st.lists(st.tuples(U64, MESSAGES), max_size=5), st.integers(1, 40))
def test_a_stream_is_cut_into_its_frames_wherever_it_breaks(said, step):
    stream = b"".join(encode(group, message) for group, message in said)
    frames = Frames()
    heard = [decode(f) for at in range(0, len(stream), step) for f in frames.feed(stream[at : at + step])]
    assert heard == said


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_anything_else_is_refused(data):
    with pytest.raises(BadMessage):
        decode(data)


@settings(max_examples=300)
@given(MESSAGES, st.randoms(use_true_random=False))
def test_damage_is_refused_and_what_the_checksum_lets_pass_is_a_message_or_refused(message, rng):
    frame = bytearray(encode(7, message)[4:])
    at = rng.randrange(len(frame))
    frame[at] ^= 1 << rng.randrange(8)
    with pytest.raises(BadMessage):
        decode(bytes(frame))
    # Whoever knows the secret can also make a checksum.
    body = bytes(frame[4:]) if rng.random() < 0.5 else bytes(frame[4 : rng.randrange(4, len(frame) + 1)])
    try:
        group, other = decode(struct.pack(">I", zlib.crc32(body)) + body)
    except BadMessage:
        return
    assert encode(group, other)[8:] == body


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda body: b"\2" + body[1:], "version 2"),
        (lambda body: body[:1] + b"\x63" + body[2:], "kind 99"),
        (lambda body: body + b"x", "1 bytes after"),
        (lambda body: body[:-1], "payload of 3 bytes"),
    ],
)
def test_a_refusal_says_why(spoil, word):
    body = spoil(encode(1, AppendRequest(1, 2, 3, 0, 0, 0, (Entry(1, 1, Kind.NORMAL, b"abc"),)))[8:])
    with pytest.raises(BadMessage, match=word):
        decode(struct.pack(">I", zlib.crc32(body)) + body)


def test_entries_whose_terms_fall_are_refused():
    message = AppendRequest(1, 2, 3, 0, 0, 0, (Entry(2, 1, Kind.NORMAL, b""), Entry(1, 2, Kind.NORMAL, b"")))
    with pytest.raises(BadMessage, match="term 1 after 2"):
        decode(encode(1, message)[4:])


def test_a_frame_above_the_limit_is_refused_by_its_length():
    with pytest.raises(BadMessage, match="the limit is 100"):
        list(Frames(100).feed(struct.pack(">I", 101)))


# Datagrams

SECRET = b"a secret"


def beats(count, source=1, target=2):
    return [
        (
            group,
            Heartbeat(source, target, 3, group, 4)
            if group % 2
            else HeartbeatResponse(source, target, 3, group),
        )
        for group in range(count)
    ]


def test_the_heartbeats_of_many_groups_share_a_datagram():
    sender, gate = Sender(SECRET, 1, 2, 10), Gate(SECRET, 2)
    (datagram,) = sender.pack(beats(MAX_BEATS))
    assert len(datagram) <= MAX_DATAGRAM_BYTES
    assert gate.open(datagram) == (1, beats(MAX_BEATS))
    first, second = sender.pack(beats(MAX_BEATS + 1))
    assert gate.open(first)[1] + gate.open(second)[1] == beats(MAX_BEATS + 1)


def test_a_datagram_counts_once():
    sender, gate = Sender(SECRET, 1, 2, 10), Gate(SECRET, 2)
    datagrams = [sender.pack(beats(1))[0] for _ in range(WINDOW + 2)]
    order = list(range(WINDOW + 2))
    random.Random(1).shuffle(order)
    came = []
    for number in order:
        try:
            gate.open(datagrams[number])
            came.append(number)
        except BadMessage:
            # Further behind than the window reaches.
            assert max(came) - number > WINDOW
    assert len(came) >= WINDOW
    for datagram in datagrams:
        with pytest.raises(BadMessage, match="before, or too late"):
            gate.open(datagram)


def test_a_datagram_of_an_earlier_life_is_refused():
    gate = Gate(SECRET, 2)
    (old,) = Sender(SECRET, 1, 2, 10).pack(beats(1))
    (new,) = Sender(SECRET, 1, 2, 11).pack(beats(1))
    gate.open(new)
    with pytest.raises(BadMessage, match="earlier life"):
        gate.open(old)


def test_what_a_stranger_recorded_for_another_or_changed_is_refused():
    (datagram,) = Sender(SECRET, 1, 2, 10).pack(beats(3))
    with pytest.raises(BadMessage, match="not of this cluster"):
        Gate(b"another secret", 2).open(datagram)
    with pytest.raises(BadMessage, match="from 1 to 2"):
        Gate(SECRET, 3).open(datagram)
    with pytest.raises(BadMessage, match="from 1 to 2"):
        Gate(SECRET, 1).open(datagram)
    for at in range(len(datagram)):
        with pytest.raises(BadMessage):
            Gate(SECRET, 2).open(datagram[:at] + bytes([datagram[at] ^ 1]) + datagram[at + 1 :])
        with pytest.raises(BadMessage):
            Gate(SECRET, 2).open(datagram[:at])


def test_a_refused_datagram_does_not_move_the_window():
    gate = Gate(SECRET, 2)
    sender = Sender(SECRET, 1, 2, 10)
    (first,), (second,) = sender.pack(beats(1)), sender.pack(beats(1))
    with pytest.raises(BadMessage):
        gate.open(second[:-1] + b"x")
    gate.open(first)
    gate.open(second)


# The handshake

NONCES = b"i" * 32, b"a" * 32


def shake(initiator, acceptor):
    challenge = acceptor.challenge(initiator.hello())
    return acceptor.accept(initiator.prove(challenge))


def test_two_nodes_of_a_cluster_know_each_other():
    assert shake(Initiator(SECRET, 1, 2, NONCES[0]), Acceptor(SECRET, 2, NONCES[1])) == 1


def test_a_node_without_the_secret_is_found_out_by_either_side():
    initiator, acceptor = Initiator(b"no", 1, 2, NONCES[0]), Acceptor(SECRET, 2, NONCES[1])
    challenge = acceptor.challenge(initiator.hello())
    with pytest.raises(HandshakeFailed, match="secret"):
        initiator.prove(challenge)
    with pytest.raises(HandshakeFailed, match="secret"):
        acceptor.accept(bytes(32))


def test_a_hello_for_another_node_is_refused():
    for source, target in ((1, 3), (2, 2)):
        with pytest.raises(HandshakeFailed, match="this is 2"):
            Acceptor(SECRET, 2, NONCES[1]).challenge(Initiator(SECRET, source, target, NONCES[0]).hello())


def test_what_was_recorded_is_of_no_use_with_another_nonce():
    initiator = Initiator(SECRET, 1, 2, NONCES[0])
    hello = initiator.hello()
    proof = initiator.prove(Acceptor(SECRET, 2, NONCES[1]).challenge(hello))
    again = Acceptor(SECRET, 2, b"b" * 32)
    again.challenge(hello)
    with pytest.raises(HandshakeFailed):
        again.accept(proof)


def test_what_an_acceptor_says_does_not_pass_for_a_proof():
    """Nobody can have its own challenge answered by mirroring it."""
    hello = Initiator(SECRET, 1, 2, NONCES[0]).hello()
    acceptor = Acceptor(SECRET, 2, NONCES[1])
    challenge = acceptor.challenge(hello)
    with pytest.raises(HandshakeFailed):
        acceptor.accept(challenge[-32:])


@settings(max_examples=100)
@given(st.binary(max_size=120), st.integers(0, 200))
def test_garbage_in_a_handshake_is_refused(data, at):
    with pytest.raises(HandshakeFailed):
        Acceptor(SECRET, 2, NONCES[1]).challenge(data)
    initiator, acceptor = Initiator(SECRET, 1, 2, NONCES[0]), Acceptor(SECRET, 2, NONCES[1])
    challenge = bytearray(acceptor.challenge(initiator.hello()))
    challenge[at % len(challenge)] ^= 1
    with pytest.raises(HandshakeFailed):
        initiator.prove(bytes(challenge))


def test_steps_out_of_order_are_faults_of_the_caller():
    acceptor, initiator = Acceptor(SECRET, 2, NONCES[1]), Initiator(SECRET, 1, 2, NONCES[0])
    with pytest.raises(AssertionError):
        acceptor.accept(bytes(32))
    with pytest.raises(AssertionError):
        initiator.prove(bytes(65))
    shake(initiator, acceptor)
    with pytest.raises(AssertionError):
        initiator.hello()
    with pytest.raises(ValueError, match="nonce"):
        Acceptor(SECRET, 2, b"short")
