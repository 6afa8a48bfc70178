"""The scenarios in transcripts/ go as they are written there. Anew: python -m tests.raftish.transcript"""

from __future__ import annotations

import pytest

from tests.raftish.transcript import FOLDER, replay

PATHS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_scenario_goes_as_written(path):
    text = path.read_text(encoding="utf-8")
    assert replay(text) == text


def test_there_are_scenarios_with_answers():
    assert len(PATHS) >= 10
    for path in PATHS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert sum(not line.startswith((">", "#")) for line in lines if line) > 10, path.stem
