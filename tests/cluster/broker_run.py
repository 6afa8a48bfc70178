"""Faults on a cluster of brokers under transactional load, as one call."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import evidence
from tests.cluster.campaign import Campaign
from tests.cluster.machines import BrokerCluster
from tests.cluster.times import ServiceTimes
from tests.history import Violation


def run_brokers(
    folder: Path, nodes: int, seed: int, faults: int, *, groups: str = "disk"
) -> tuple[list[Violation], ServiceTimes]:
    """The violations, and how long service was away. Prints times and counts, also when the run fails.

    `groups`: what the cluster replicates, as `sealog serve --groups` takes it.
    """
    from tests.cluster.broker_load import BrokerLoad

    with BrokerCluster(folder, nodes, groups=groups) as cluster:
        load = BrokerLoad(
            cluster.bootstrap,
            seed,
            min(3, nodes),
            client_log=folder / "plain-client.log",
        )
        try:
            campaign = Campaign(cluster, load, seed=seed, faults=faults)
            violations = campaign.run()
            if violations:
                told = evidence.tell(list(cluster.clients.values()), load.final_reads)
                (folder / "evidence.txt").write_text("\n".join([*map(str, violations), told, ""]))
                print(f"{told}\nnodes, their logs and the client's: {folder}", flush=True)
            return violations, campaign.times
        finally:
            load.close()
            print(load.report(), flush=True)
