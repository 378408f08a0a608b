"""Clients of Kubernetes and Kubeflow, one module for each service.

objects/         the Kubernetes objects of a run, as dictionaries: pure functions
kubernetes_api   the Kubernetes API: configuration, requests, retries, errors
watches          a watch on the objects of one kind, which survives faults of the connection
launching        a step that launches its stage as a RayJob or TrainJob, and watches it
launched_garbage deletes launched objects whose run has ended
signals          SIGTERM and SIGINT of a process that cleans up
kubeflow         Kubeflow Pipelines: the connection, and starting a compiled pipeline
kubeflow_runs    its runs: list, follow, stop, retry; the log of a failed step
schedules        recurring runs of Kubeflow
cron             cron expressions and time zones of recurring runs

This package knows no stages: `orchestration` passes the compiled pipeline and a step's command.
`sandbox` and `serving` use this client as well.
"""
