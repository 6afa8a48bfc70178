"""The worker processes. Each runs one stage's loop and, if it fails, says so before it ends."""

import contextlib
import logging
import signal
import traceback
from multiprocessing.context import SpawnContext, SpawnProcess

from demo.feeder import Feeder
from demo.plan import FEEDERS, TOTALLERS, KillOrder, Plan, Report, Stage, Wires
from demo.totals import Totaller

WORKERS: dict[Stage, int] = {"flights": FEEDERS, "airport-totals": TOTALLERS}
KILL_AT: dict[Stage, float] = {"flights": 0.15, "airport-totals": 0.2}
"""The part of all flights that one worker has behind it when it has the broker killed: each can get so far."""


def work(plan: Plan, wires: Wires, stage: Stage, worker: int, order: KillOrder | None) -> None:
    # Ctrl-C reaches the whole group of processes; main ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # kafka-python tells at length of every connection that a killed broker refuses.
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    try:
        kind = Feeder if stage == "flights" else Totaller
        kind(plan, wires, worker, order).run()
        wires.reports.put(Report("done", stage, worker))
    except Exception:  # noqa: BLE001 - the process ends here, and main must know why
        wires.reports.put(Report("failed", stage, worker, message=traceback.format_exc()))


def kill_orders(context: SpawnContext, plan: Plan) -> dict[Stage, KillOrder]:
    """One per stage, if the plan has kills."""
    if not plan.kills:
        return {}
    return {
        stage: KillOrder(int(plan.flights * share), context.Semaphore(1), context.Event())
        for stage, share in KILL_AT.items()
    }


def start_workers(
    context: SpawnContext, plan: Plan, wires: Wires, orders: dict[Stage, KillOrder]
) -> list[SpawnProcess]:
    processes = []
    for stage, count in WORKERS.items():
        for worker in range(count):
            arguments = (plan, wires, stage, worker, orders.get(stage))
            process = context.Process(target=work, args=arguments, daemon=True)
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
