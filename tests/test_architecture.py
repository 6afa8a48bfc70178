"""The shape of the code: imports point one way (docs/design.md, "Shape of the code")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "wire": set(),
    "storage": {"wire"},
    "raftish": {"wire"},
    "txn": {"wire", "storage", "raftish"},
    "broker": {"wire", "storage", "raftish", "txn"},
    "pyspark_sealog": {"wire"},
}

CLIENTS_READ_FILES_BY = {"storage.sealed", "storage.log_starts", "storage.format"}
"""All of `storage` that pyspark_sealog may name: sealed segment files as a stranger reads them."""

CLIENTS = {"pyspark_sealog"}
"""Not part of the broker: they run in other processes, with sockets and clocks of their own."""

STATE_MACHINES_AVOID = {"time", "random", "socket", "threading", "asyncio", "os", "secrets", "subprocess"}
"""Clock, disk, network and randomness are handed in; only the edge modules below may reach for them."""

EDGE = {
    "raftish/transport.py",
    "storage/compaction_worker.py",
    "storage/real_disk.py",
    "broker/compaction_process.py",
    "broker/cli.py",
    "broker/cluster_progress.py",
    "broker/cluster_serve.py",
    "broker/leader_relay.py",
    "broker/asking.py",
    "broker/client.py",
    "broker/recover_command.py",
    "broker/scheduler.py",
    "broker/serve.py",
    "broker/server.py",
}


def modules(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def imported_roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(path)}


def calls_open(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    ours = set(MAY_IMPORT)
    for path in modules(package):
        imported = imported_modules(path) - (CLIENTS_READ_FILES_BY if package in CLIENTS else set())
        forbidden = ({name.split(".")[0] for name in imported} & ours) - MAY_IMPORT[package] - {package}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}"


@pytest.mark.parametrize("package", sorted(MAY_IMPORT.keys() - CLIENTS))
def test_only_the_edge_touches_the_world(package: str) -> None:
    for path in modules(package):
        name = str(path.relative_to(ROOT))
        if name in EDGE:
            continue
        touched = imported_roots(path) & STATE_MACHINES_AVOID
        assert not touched, f"{name} imports {sorted(touched)}: hand it in instead"
        assert not calls_open(path), f"{name} opens a file by itself: use the Disk it is given"


def test_the_metadata_store_is_a_library_of_its_own() -> None:
    """No word of Kafka in it: it could serve anything that needs an ordered, durable, watchable map."""
    for path in (ROOT / "txn" / "metastore").rglob("*.py"):
        text = path.read_text(encoding="utf-8").lower()
        for word in ("kafka", "topic", "producer", "consumer", "coordinator"):
            assert word not in text, f"{path.relative_to(ROOT)} speaks of {word!r}"
