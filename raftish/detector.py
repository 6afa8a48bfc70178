"""How likely it is that a node is gone, by the times of its heartbeats (phi accrual, Hayashibara et al. 2004).

With exponential gaps, as in Cassandra: phi = log10(e) x (time since the last one) / (mean gap). A phi of 8 means that a
living node is silent for so long once in 10^8 times. Pure; times are milliseconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque

_LOG10_E = math.log10(math.e)


class Detector:
    def __init__(self, expected_gap_ms: float, *, window: int = 100, threshold: float = 8.0) -> None:
        """`expected_gap_ms` is what counts until there is experience, and the least that a mean is taken for."""
        if expected_gap_ms <= 0 or window < 1:
            raise ValueError("a gap and a window are positive")
        self._floor_ms = expected_gap_ms
        self._threshold = threshold
        self._gaps: deque[float] = deque(maxlen=window)
        self._sum_ms = 0.0
        self._last_ms: float | None = None

    def heard(self, now_ms: float) -> None:
        if self._last_ms is not None:
            gap = now_ms - self._last_ms
            if gap < 0:
                return
            # A long silence that ended says nothing about the usual gaps.
            gap = min(gap, self._mean_ms() * self._threshold / _LOG10_E)
            if len(self._gaps) == self._gaps.maxlen:
                self._sum_ms -= self._gaps[0]
            self._gaps.append(gap)
            self._sum_ms += gap
        self._last_ms = now_ms

    def _mean_ms(self) -> float:
        return max(self._floor_ms, self._sum_ms / len(self._gaps)) if self._gaps else self._floor_ms

    def phi(self, now_ms: float) -> float:
        """0 right after a heartbeat; infinite for a node that was never heard."""
        if self._last_ms is None:
            return math.inf
        return _LOG10_E * max(0.0, now_ms - self._last_ms) / self._mean_ms()

    def suspects(self, now_ms: float) -> bool:
        return self.phi(now_ms) > self._threshold
