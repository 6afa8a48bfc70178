"""Splits and merges of a simulated cluster's ranges: one by one, or at random moments beside something else."""

from __future__ import annotations

from wire import layouts as messages
from wire import private_api
from wire.apis import ApiKey

REQUESTS = {"split": messages.Split, "merge": messages.Merge, "show": messages.Describe}


def layout(cluster, what, topic, *, wait_ms=60_000, **fields):
    """The controller's answer, through any node; None where none came."""
    client = cluster.client(cluster.rng.choice(list(cluster.members)))
    client._asked.append((ApiKey.SEALOG_LAYOUT, 0, 1))
    request = REQUESTS[what](topic=topic, **fields)
    client.session.received(private_api.encode_request(ApiKey.SEALOG_LAYOUT, 1, "sim", request))
    ended = []
    cluster.scheduler.call_later(wait_ms, ended.append, None)
    cluster.run_until(lambda: client.answers or client.closed or ended)
    if 1 not in client.answers:
        client.session.lost()
    return client.answers.get(1)


def spans(cluster, topic):
    """The ranges that have its partitions now, as some node knows them."""
    member = cluster.rng.choice(list(cluster.members.values()))
    ranges = [one for one in member.topics.ranges.values() if one.topic == topic and not one.retired]
    return sorted((one.first, one.last) for one in ranges)


class Reshaper:
    """Asks whoever is the controller for splits and merges, at random moments."""

    def __init__(self, cluster, topic, partitions, most_ms):
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.most_ms = most_ms
        self.is_over = False
        self.begun = self.done = 0
        self._next()

    def _next(self):
        self.cluster.scheduler.call_later(self.cluster.rng.randrange(20, self.most_ms), self._step)

    def _step(self):
        if self.is_over:
            return
        self._next()
        rng = self.cluster.rng
        controllers = [one.node.controller for one in self.cluster.members.values() if one.node.controller]
        for controller in controllers[:1]:
            topic = controller.topics.get(self.topic)
            if topic is None:
                continue
            self.begun += 1
            ranges = controller.layouts.spans(topic)
            if rng.random() < 0.5 and len(ranges) > 1:
                first, last = sorted(rng.sample(range(len(ranges)), 2))
                controller.layouts.merge(topic, ranges[first][0], ranges[last][1], self._arranged)
            else:
                controller.layouts.split(
                    topic, rng.sample(range(self.partitions), rng.randint(1, 2)), self._arranged
                )

    def _arranged(self, result):
        self.done += getattr(result, "changed", False)

    def end(self):
        """No more of it; all that was begun comes to its end."""
        self.is_over = True
        self.cluster.run_until(self._is_at_rest, max_ms=120_000)

    def _is_at_rest(self):
        # A node that is not added yet knows of nothing.
        knowing = [one for one in self.cluster.members.values() if one.topics.get(self.topic) is not None]
        ranges = [record for one in knowing for record in one.topics.ranges.values()]
        return bool(knowing) and not any(record.becomes for record in ranges)


def check_epochs(cluster, topic):
    """Leader epochs rise along every partition's log, over whatever ranges it was in."""
    for member in cluster.members.values():
        for partition in member.topics.get(topic).partitions:
            epochs = [epoch for epoch, _ in partition.epochs]
            assert epochs == sorted(set(epochs)), f"{partition}: {epochs}"
            assert not epochs or epochs[-1] <= partition.log.term
