"""Prometheus metrics of a stage that runs in a pod; off unless ESPALIER_METRICS_PORT is set.

    exporter    answers /metrics while a stage runs
    training    a tracker that keeps figures of training steps as metrics
    sandboxes   metrics of sandbox pools, read at each scrape

A stage is a batch job: it can be scraped only while it runs; its results are in MLflow. The
endpoint and the controller of `espalier.serving` have metrics of their own.
"""

from espalier.monitoring.exporter import PORT_VARIABLE, exported_tracker

__all__ = ["PORT_VARIABLE", "exported_tracker"]
