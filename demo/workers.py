"""The worker processes. Each runs one stage's loop and, if it fails, says so before it ends."""

import contextlib
import logging
import signal
import traceback
from multiprocessing.context import SpawnContext, SpawnProcess

from demo.feeder import Feeder
from demo.plan import FEEDERS, TOTALLERS, Plan, Report, Stage, Wires
from demo.totals import Totaller

KILL_FEEDER_AT = 0.3
KILL_TOTALLER_AT = 0.25
"""Shares of a worker's own part (the totallers share the flights between them, so of half of all)."""


def work(plan: Plan, wires: Wires, stage: Stage, worker: int, kill_at: int | None) -> None:
    # Ctrl-C reaches the whole group of processes; main ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # kafka-python tells at length of every connection that a killed broker refuses.
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    try:
        kind = Feeder if stage == "flights" else Totaller
        kind(plan, wires, worker, kill_at).run()
        wires.reports.put(Report("done", stage, worker))
    except Exception:  # noqa: BLE001 - the process ends here, and main must know why
        wires.reports.put(Report("failed", stage, worker, message=traceback.format_exc()))


def start_workers(context: SpawnContext, plan: Plan, wires: Wires) -> list[SpawnProcess]:
    """All workers. The first of each stage asks for the broker's death once, if the plan has kills."""
    processes = []
    for stage, count, share in (
        ("flights", FEEDERS, KILL_FEEDER_AT / FEEDERS),
        ("airport-totals", TOTALLERS, KILL_TOTALLER_AT),
    ):
        for worker in range(count):
            kill_at = int(plan.flights * share) if plan.kills and worker == 0 else None
            process = context.Process(target=work, args=(plan, wires, stage, worker, kill_at), daemon=True)
            process.start()
            processes.append(process)
    return processes


def end_workers(processes: list[SpawnProcess]) -> None:
    for process in processes:
        with contextlib.suppress(ValueError):
            process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
