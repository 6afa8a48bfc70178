"""The Spark workload of bench/ runs, at the smallest size, and reports what it promises."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench import render
from bench.setting import SEALOG, Setting
from bench.workloads import spark as workload
from tests.support.shim import require
from tests.support.toolchains import require_program


def test_the_workload(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("slowflush")
    require_program("mvn", "the Kafka connector cannot be got")
    monkeypatch.setattr(workload, "session", lambda: nullcontext(spark))
    result = workload.run(Setting(tmp_path, (SEALOG,), lambda _: None), **workload.TINY)
    rates, *commits = result.tables
    assert [row[0] for row in rates.rows] == [
        workload.OURS,
        workload.CONNECTOR[SEALOG],
        "the input to noop",
    ]
    assert len(commits) == len(workload.TINY["delays_ms"])
    for table in commits:
        for _, _, commit_ms, _, job_s in table.rows:
            assert 0 < commit_ms / 1000 < job_s
    (delay_ms,) = workload.TINY["delays_ms"]
    assert min(row[2] for row in commits[0].rows) > delay_ms, "a commit waits for a flush"
    for targets in ("source to noop", "source to Parquet", "sink", "commit"):
        assert any(target.text.startswith(targets) for target in result.targets)
    json.dumps(result.as_json())
    assert result.title in render.markdown(result)
