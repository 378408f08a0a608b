"""Counters, as Prometheus reads them."""

import re

from sandboxd.metrics import Metrics
from sandboxd.wire import RunEnd, RunRequest


def _end(**parts):
    ended = {
        "exit_status": 0,
        "signal": None,
        "killed_by": None,
        "truncated": False,
        "duration_s": 0.05,
        "cpu_s": 0.0,
        "max_rss_bytes": 0,
    }
    return RunEnd(**(ended | parts))


def test_runs_are_counted_by_kind_and_by_what_ended_them():
    metrics = Metrics()
    metrics.count_run(RunRequest(argv=("a",)), _end(), 0)
    metrics.count_run(RunRequest(argv=("a",)), _end(exit_status=None, signal=11), 0)
    metrics.count_run(RunRequest(code="1"), _end(killed_by="memory", signal=9), 7)
    metrics.count_run(RunRequest(code="1", session=True), _end(duration_s=3.0), 0)
    lines = metrics.text(runs=2).splitlines()
    assert 'sandboxd_runs_total{kind="exec",ended_by="itself"} 1' in lines
    assert 'sandboxd_runs_total{kind="exec",ended_by="signal"} 1' in lines
    assert 'sandboxd_runs_total{kind="python",ended_by="memory"} 1' in lines
    assert 'sandboxd_runs_total{kind="session",ended_by="itself"} 1' in lines
    assert "sandboxd_dropped_bytes_total 7" in lines
    assert "sandboxd_runs_in_flight 2" in lines
    assert 'sandboxd_run_seconds_bucket{le="0.1"} 3' in lines
    assert 'sandboxd_run_seconds_bucket{le="+Inf"} 4' in lines
    assert "sandboxd_run_seconds_count 4" in lines


def test_every_line_is_one_that_prometheus_takes():
    metrics = Metrics()
    metrics.count("sandboxd_refused_total", 'status="404"')
    sample = re.compile(r'[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? [0-9.]+')
    for line in metrics.text(runs=0).splitlines():
        assert sample.fullmatch(line) or re.fullmatch(r"# (HELP|TYPE) sandboxd_\w+ .+", line)
