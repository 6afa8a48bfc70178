"""Random changes of the layout, one after another, as fast as the broker takes them: splits, merges and seals."""

import random
import threading
from collections import Counter

from broker.client import LayoutClient
from tests.crash.load import INPUT_TOPIC, TOPICS, Load
from wire.errors import KafkaError


class Shaker(threading.Thread):
    """Changes the ranges of the load's topics until the load stops. `counts` tells of what."""

    def __init__(self, address: str, load: Load, seed: int, *, pause_s: float = 0.004) -> None:
        super().__init__(name="shaker", daemon=True)
        self.counts: Counter[str] = Counter()
        self._address = address
        self._load = load
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._stop_waiting = threading.Event()

    @property
    def changes(self) -> int:
        return sum(self.counts[what] for what in ("split", "merge", "seal"))

    def run(self) -> None:
        while not self._load.stopping:
            try:
                with LayoutClient(self._address, timeout_s=10.0) as client:
                    while not self._load.stopping:
                        self._change(client)
                        self._stop_waiting.wait(self._rng.uniform(0, 2 * self._pause_s))
            except OSError:
                # The broker is down, or went down under the call: whether that change happened is the layout's to say.
                self.counts["cut off"] += 1
                self._stop_waiting.wait(0.02)

    def _change(self, client: LayoutClient) -> None:
        topic = self._rng.choice((*TOPICS, INPUT_TOPIC))
        ranges = client.describe(topic).ranges
        partitions = ranges[-1][1] + 1
        choice = self._rng.random()
        try:
            if choice < 0.45:
                what, answer = "split", client.split(topic, [self._rng.randrange(partitions)])
            elif choice < 0.85 and len(ranges) > 1:
                start = self._rng.randrange(len(ranges) - 1)
                end = self._rng.randrange(start + 1, len(ranges))
                what, answer = "merge", client.merge(topic, ranges[start][0], ranges[end][1])
            else:
                what, answer = "seal", client.seal(topic, self._rng.randrange(partitions))
        except KafkaError as refused:
            # Nobody else changes this layout, so there is nothing to refuse: the run fails by it.
            self.counts[f"refused: {refused}"] += 1
            return
        self.counts[what if answer.changed else "nothing to change"] += 1
