from __future__ import annotations

import math

import pytest

from raftish.detector import Detector


def beating(gap_ms, count=50):
    detector = Detector(10)
    for number in range(count):
        detector.heard(number * gap_ms)
    return detector, (count - 1) * gap_ms


def test_a_node_that_was_never_heard_is_suspected():
    assert Detector(10).suspects(0)
    assert Detector(10).phi(0) == math.inf


def test_suspicion_grows_with_silence_and_ends_with_a_word():
    detector, now = beating(100)
    assert detector.phi(now) == 0
    assert detector.phi(now + 100) == pytest.approx(math.log10(math.e))
    assert not detector.suspects(now + 1500)
    assert detector.suspects(now + 2000)
    detector.heard(now + 2000)
    assert not detector.suspects(now + 2100)


def test_it_learns_how_long_gaps_are():
    fast, fast_now = beating(20)
    slow, slow_now = beating(200)
    assert fast.suspects(fast_now + 600)
    assert not slow.suspects(slow_now + 600)


def test_one_long_silence_does_not_make_it_patient():
    detector, now = beating(100)
    detector.heard(now + 1_000_000)
    assert detector.suspects(now + 1_000_000 + 3000)


def test_a_burst_does_not_make_it_hasty():
    detector, now = beating(0.1)
    assert not detector.suspects(now + 100)


def test_what_it_remembers_is_bounded():
    detector, now = beating(100, count=1000)
    for _ in range(100):
        now += 20
        detector.heard(now)
    assert detector.suspects(now + 400)


def test_time_that_goes_back_is_passed_over():
    detector, now = beating(100)
    detector.heard(now - 50)
    assert detector.phi(now) == 0


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError):
        Detector(0)
    with pytest.raises(ValueError):
        Detector(10, window=0)
