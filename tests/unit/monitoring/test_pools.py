from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest

from espalier.monitoring.sandboxes import SandboxCollector
from espalier.sandbox.pool import PoolMetrics, PoolState


def exposition(states, metrics):
    registry = CollectorRegistry()
    registry.register(SandboxCollector(lambda: states, lambda: metrics))
    return generate_latest(registry).decode().splitlines()


def test_pools_add_up_and_closed_ones_stay_counted():
    open_pools = [PoolState(8, 1, 2, 3, 4, 5), PoolState(4, 1, 0, 0, 0, 0)]
    counted = [
        PoolMetrics(claim_s=[0.004, 0.3, 500.0], failures=Counter(lost=2), created=7),
        PoolMetrics(claim_s=[0.3], failures=Counter(lost=1, quota=1), created=1),
        PoolMetrics(claim_s=[0.005], retired=Counter(worn=4), created=2),
    ]
    told = exposition(open_pools, counted)
    for line in (
        'espalier_sandbox_pool_sandboxes{state="free"} 2.0',
        'espalier_sandbox_pool_sandboxes{state="starting"} 4.0',
        "espalier_sandbox_pool_size 12.0",
        "espalier_sandbox_pool_waiting_claims 5.0",
        'espalier_sandbox_pool_claim_seconds_bucket{le="0.005"} 2.0',
        'espalier_sandbox_pool_claim_seconds_bucket{le="0.5"} 4.0',
        'espalier_sandbox_pool_claim_seconds_bucket{le="120.0"} 4.0',
        'espalier_sandbox_pool_claim_seconds_bucket{le="+Inf"} 5.0',
        "espalier_sandbox_pool_claim_seconds_count 5.0",
        'espalier_sandbox_pool_failures_total{cause="lost"} 3.0',
        'espalier_sandbox_pool_retired_total{cause="worn"} 4.0',
        "espalier_sandbox_pool_created_total 10.0",
    ):
        assert line in told, line


def test_a_process_without_pools_tells_zeros():
    told = exposition([], [])
    assert "espalier_sandbox_pool_size 0.0" in told
    assert 'espalier_sandbox_pool_claim_seconds_bucket{le="+Inf"} 0.0' in told
