"""Prometheus metrics of a stage that runs in a pod; off unless ESPALIER_METRICS_PORT names a port.

    exporter    answers /metrics while a stage runs
    training    figures of the steps of training, as a tracker
    sandboxes   pools of sandboxes, read when they are scraped

A stage is a batch job: it answers scrapes as long as it runs, and what it came to is in MLflow. The
endpoint and the controller of `espalier.serving` have metrics of their own.
"""

from espalier.monitoring.exporter import PORT_VARIABLE, exported_tracker

__all__ = ["PORT_VARIABLE", "exported_tracker"]
