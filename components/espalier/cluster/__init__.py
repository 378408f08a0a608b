"""Clients of Kubernetes and Kubeflow, one module for each service.

objects/         the Kubernetes objects of a run, as dictionaries: pure functions
kubernetes_api   the Kubernetes API: configuration, requests, retries, errors
watches          the objects of one kind, followed through every fault of the connection
launching        a step that launches its stage as a RayJob or TrainJob, and watches it
launched_garbage their collector
signals          SIGTERM and SIGINT of a process that cleans up
kubeflow         Kubeflow Pipelines: the connection, and starting a compiled pipeline
kubeflow_runs    its runs: list, follow, stop, retry; the log of a failed step
schedules        recurring runs of Kubeflow
cron             their cron expressions and time zones

Stages are unknown here: `orchestration` passes the compiled pipeline and the command of a step.
`sandbox` and `serving` use this client as well.
"""
