"""`./run cluster`, without the shell around it: it starts, shows itself, and ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.support.broker_process import CHECKOUT


@pytest.mark.parametrize(("nodes", "groups"), [(1, "disk"), (3, "disk"), (3, "ranges")])
def test_it_shows_itself_and_ends_by_ctrl_c(nodes, groups, tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "demo.local_cluster"),
            *("--nodes", str(nodes), "--groups", groups, "--data", str(tmp_path)),
        ],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = []
        while not lines or "Ctrl-C" not in lines[-1]:
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
        text = "".join(lines)
        assert re.search(
            rf"^cluster \w+: {nodes} nodes?, \d+ ranges?, node \d takes changes$", text, re.MULTILINE
        )
        assert "./run cluster status --bootstrap-server 127.0.0.1:" in text
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 0
        assert rest.strip() == "ended"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for node in range(1, nodes + 1):
        assert "stopping" in (tmp_path / f"node-{node}.log").read_text(), "each node was stopped cleanly"
