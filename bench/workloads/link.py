"""8: over a link with a delay: a commit is one round trip and one flush."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack

from bench.load import JavaLoad
from bench.proxy import delayed_link
from bench.raw import RawConnection
from bench.report import Result, Table, Target, percentile
from bench.setting import SEALOG, Setting
from bench.systems.server_process import free_port
from bench.workloads.turns import COMMIT, PLAIN, TXN, measure
from wire.apis import ApiKey

PINGS = 100

TINY = {"rtts_ms": (1.0,), "delays_ms": (0.0,), "widths": (1,), "turns": 3, "warmup": 1, "rounds": 1}
QUICK = {
    "rtts_ms": (1.0, 5.0),
    "delays_ms": (0.0, 5.0),
    "widths": (1, 10),
    "turns": 40,
    "warmup": 20,
    "rounds": 1,
}
FULL = {
    "rtts_ms": (1.0, 5.0),
    "delays_ms": (0.0, 5.0),
    "widths": (1, 10),
    "turns": 200,
    "warmup": 80,
    "rounds": 3,
}


def run(
    setting: Setting,
    *,
    rtts_ms: tuple[float, ...],
    delays_ms: tuple[float, ...],
    widths: tuple[int, ...],
    turns: int,
    warmup: int,
    rounds: int,
) -> Result:
    result = Result(
        "link",
        "8. Over a link",
        "The client reaches the broker through a proxy that delays each direction by half the round trip time. "
        "Milliseconds, p50. The commit alone: after all records of the transaction have been acknowledged. The "
        "smallest request: FindCoordinator, one after the other, which is what the link takes in fact.",
    )
    columns = ["system", "RTT", "flush delay", "partitions", "plain", "transaction", "p99", "commit alone"]
    columns += ["smallest request"]
    table = Table("", columns)
    for rtt_ms in rtts_ms:
        for delay_ms in delays_ms:
            setting.say(f"link: RTT {rtt_ms:g} ms, flush delay {delay_ms:g} ms")
            with JavaLoad() as load, ExitStack() as stack:
                addresses = {}
                for name in setting.systems:
                    addresses[name] = _behind_link(setting, stack, name, rtt_ms, delay_ms)
                smallest = {name: _smallest_request_ms(address) for name, address in addresses.items()}
                for width in widths:
                    found = measure(
                        load,
                        addresses,
                        width,
                        turns=turns,
                        warmup=warmup,
                        rounds=rounds,
                        modes=(PLAIN, TXN, COMMIT),
                    )
                    for name in addresses:
                        plain, txn, commit = (found[name, mode] for mode in (PLAIN, TXN, COMMIT))
                        times = (plain.p50, txn.p50, txn.p99, commit.p50)
                        table.rows.append([name, rtt_ms, delay_ms, width, *times, smallest[name]])
                        if name == SEALOG and delay_ms:
                            over = commit.p50 / (rtt_ms + delay_ms)
                            result.targets.append(
                                Target(
                                    f"RTT {rtt_ms:g} ms, {width} partitions: commit / (RTT + flush)",
                                    over,
                                    1.25,
                                    False,
                                )
                            )
    result.tables.append(table)
    return result


def _smallest_request_ms(address: str) -> float:
    times = []
    with contextlib.closing(RawConnection(address)) as connection:
        for _ in range(PINGS):
            began = time.perf_counter()
            connection.call(ApiKey.FIND_COORDINATOR, "find_coordinator", 3, key="link", key_type=1)
            times.append(1000 * (time.perf_counter() - began))
    # The first ones make what is made once.
    return percentile(times[PINGS // 10 :], 50)


def _behind_link(setting: Setting, stack: ExitStack, name: str, rtt_ms: float, delay_ms: float) -> str:
    """Start a system that sends its clients to the proxy; the proxy's address."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    system = setting.system(
        name,
        flush_delay_ms=delay_ms,
        settings={"advertised_listener": address},
        kafka_settings={"advertised.listeners": f"PLAINTEXT://{address}"},
    )
    stack.enter_context(system)
    return stack.enter_context(delayed_link(system.address, port, rtt_ms))
