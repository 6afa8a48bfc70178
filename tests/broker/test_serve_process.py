"""`sealog serve` and `sealog check` as a person meets them: real processes, real folders."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker_process import CHECKOUT, BrokerProcess, free_port

SEALOG = [sys.executable, "-m", "broker"]


def run(*args: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SEALOG, *args], capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


def produce(address: str, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for value in values:
        producer.produce("t", value)
    assert producer.flush(20) == 0


def test_it_says_where_it_listens_and_where_its_data_is(broker: BrokerProcess) -> None:
    said = broker.log_tail()
    assert f"listens on 127.0.0.1:{broker.port}" in said
    assert str(broker.data) in said


def test_a_free_port_is_found_and_told(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SEALOG, "serve", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"listens on 127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None
        with socket.create_connection(("127.0.0.1", int(found[1])), 5):
            pass
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_second_server_on_the_same_folder_is_refused(broker: BrokerProcess) -> None:
    second = run("serve", "--data", str(broker.data), "--listen", f"127.0.0.1:{free_port()}")
    assert second.returncode != 0
    assert "another sealog serves this folder" in second.stderr
    assert broker.process is not None
    assert str(broker.process.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_that_is_taken_is_refused_in_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    second = run("serve", "--data", str(tmp_path / "other"), "--listen", broker.address)
    assert second.returncode != 0
    assert "address already in use" in second.stderr.lower()
    assert "Traceback" not in second.stderr


def test_a_folder_of_an_unknown_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "SEALOG").write_text("sealog format 99\n")
    refused = run("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert refused.returncode != 0
    assert "99" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (tmp_path / "SEALOG").read_text() == "sealog format 99\n"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    refused = run("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert refused.returncode != 0
    assert "thesis.txt" in refused.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "colour"),
        ("segment_bytes = 'many'", "segment_bytes"),
        ("segment_bytes = 1", "segment_bytes"),
        ("[limits]\nconnections = 0", "connections"),
        ("listen = 'nowhere'", "HOST:PORT"),
        ("=", "config.toml"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    refused = run("serve", "--config", str(file), "--data", str(tmp_path / "data"))
    assert refused.returncode != 0
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_settings_come_from_the_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"data = '{tmp_path / 'from-file'}'\nlisten = '127.0.0.1:1'\nnum_partitions = 7\n")
    with BrokerProcess(tmp_path / "data", args=["--config", str(file)]) as broker:
        produce(broker.address, [b"x"])
        from confluent_kafka.admin import AdminClient

        topics = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics
        assert len(topics["t"].partitions) == 7
    assert not (tmp_path / "from-file").exists()


def test_clean_stop_and_start_keep_everything(broker: BrokerProcess) -> None:
    produce(broker.address, [b"%d" % n for n in range(100)])
    broker.sigterm()
    broker.start()
    assert "Traceback" not in broker.log_tail()
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=10) == (0, 100)
    consumer.close()


def test_check_finds_a_good_folder_good_and_names_what_is_damaged(broker: BrokerProcess) -> None:
    for _ in range(2):  # what is written later says that the earlier had been flushed
        produce(broker.address, [b"v" * 1000 for _ in range(10)])
    broker.sigterm()
    good = run("check", str(broker.data))
    assert good.returncode == 0, good.stdout + good.stderr
    (segment,) = broker.data.glob("topics/*/*.seg")
    content = bytearray(segment.read_bytes())
    content[6000] ^= 0x40
    segment.write_bytes(content)
    bad = run("check", str(broker.data))
    assert bad.returncode == 1
    assert segment.name in bad.stdout
    assert segment.read_bytes() == bytes(content), "check changes nothing"


def test_check_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    missing = run("check", str(tmp_path / "nothing"))
    assert missing.returncode != 0
    assert "Traceback" not in missing.stderr


def test_help_speaks_of_every_command() -> None:
    text = run("--help").stdout
    assert "serve" in text
    assert "check" in text
    assert "HOST:PORT" in run("serve", "--help").stdout


def test_the_command_line_loads_no_messages_before_it_knows_what_to_do() -> None:
    """They take most of a start, and drag in a testing library unless `serve` keeps it out first."""
    check = "import sys, broker.cli; print(sorted({'kio', 'hypothesis', 'asyncio'} & sys.modules.keys()))"
    found = subprocess.run(
        [sys.executable, "-c", check], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_broker_alone_imports_nothing_of_a_cluster() -> None:
    """Each start would wait for modules that it does not use."""
    program = (
        "import sys; import broker.cli, broker.serve\n"
        "print([name for name in sys.modules if name.startswith(('broker.replication.', 'broker.cluster_serve'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
