"""Prometheus metrics of sandbox pools, read from the pools at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from espalier.sandbox.pool import PoolMetrics, PoolState, pool_metrics, pool_states

_CLAIM_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class SandboxCollector(Collector):
    """Metrics of all pools of this process; closed pools are only in the counters."""

    def __init__(
        self,
        states: Callable[[], Sequence[PoolState]] = pool_states,
        metrics: Callable[[], Sequence[PoolMetrics]] = pool_metrics,
    ) -> None:
        """Read the pools with these functions."""
        self._states, self._metrics = states, metrics

    def collect(self) -> Iterator[Metric]:
        """The metrics, summed over the pools."""
        states, metrics = self._states(), self._metrics()
        held = GaugeMetricFamily(
            "espalier_sandbox_pool_sandboxes",
            "Sandboxes by state.",
            labels=["state"],
        )
        for state in ("free", "lent", "cleaning", "starting"):
            held.add_metric([state], sum(getattr(pool, state) for pool in states))
        yield held
        yield GaugeMetricFamily(
            "espalier_sandbox_pool_size",
            "Most sandboxes at once.",
            value=sum(pool.size for pool in states),
        )
        yield GaugeMetricFamily(
            "espalier_sandbox_pool_waiting_claims",
            "Borrowers that wait for a sandbox.",
            value=sum(pool.waiting for pool in states),
        )
        yield _claims([wait_s for pool in metrics for wait_s in tuple(pool.claim_s)])
        yield CounterMetricFamily(
            "espalier_sandbox_pool_created",
            "Sandboxes that became ready.",
            value=sum(pool.created for pool in metrics),
        )
        yield _by_cause(
            "espalier_sandbox_pool_failures",
            "Failed creates, loans, resets and claims: lost, quota, timeout, claim_timeout, ...",
            [pool.failures for pool in metrics],
        )
        yield _by_cause(
            "espalier_sandbox_pool_retired",
            "Sandboxes that were closed without a failure: worn, surplus.",
            [pool.retired for pool in metrics],
        )


def _claims(waits_s: Sequence[float]) -> HistogramMetricFamily:
    counts = [0] * (len(_CLAIM_BOUNDS_S) + 1)
    for wait_s in waits_s:
        counts[bisect_left(_CLAIM_BOUNDS_S, wait_s)] += 1
    buckets, below = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, _CLAIM_BOUNDS_S), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, below))
    return HistogramMetricFamily(
        "espalier_sandbox_pool_claim_seconds",
        "Waiting time of served claims.",
        buckets=buckets,
        sum_value=sum(waits_s),
    )


def _by_cause(name: str, description: str, counted: Sequence[Counter[str]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, description, labels=["cause"])
    totals: Counter[str] = Counter()
    for counts in counted:
        totals.update(counts.copy())
    for cause, count in sorted(totals.items()):
        family.add_metric([cause], count)
    return family
