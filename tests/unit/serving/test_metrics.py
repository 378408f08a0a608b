import pytest

from espalier.serving.metrics import Gauges, Metrics


def test_counters_histograms_and_gauges_are_told_as_prometheus_reads_them():
    metrics = Metrics()
    metrics.count_request("/v1/completions", 429)
    metrics.count_tokens(prompt=7, sampled=5)
    metrics.observe_first_token(0.03)
    metrics.observe_first_token(3.0)
    told = metrics.text(Gauges(ready=1, taken=2, waiting=0, connections=3)).splitlines()
    for line in (
        'espalier_serving_requests_total{route="/v1/completions",status="429"} 1.0',
        "espalier_serving_prompt_tokens_total 7.0",
        "espalier_serving_sampled_tokens_total 5.0",
        'espalier_serving_first_token_seconds_bucket{le="0.05"} 1.0',
        'espalier_serving_first_token_seconds_bucket{le="+Inf"} 2.0',
        "espalier_serving_first_token_seconds_sum 3.03",
        "espalier_serving_taken 2.0",
    ):
        assert line in told


@pytest.mark.parametrize("seconds", [0.005, 0.0051, 60.0, 61.0])
def test_a_duration_is_in_every_bucket_that_holds_it(seconds):
    metrics = Metrics()
    metrics.observe_request(seconds)
    told = metrics.text(Gauges(1, 0, 0, 0))
    for bound in (0.005, 0.02, 60.0):
        line = f'espalier_serving_request_seconds_bucket{{le="{bound}"}} {int(seconds <= bound)}'
        assert line in told
