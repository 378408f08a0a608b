"""All that speaks to Kubernetes and Kubeflow: one client module for each service.

kubernetes_api       the Kubernetes API: configuration, sending, repetition, errors
kubernetes_requests  what is sent to it
kubeflow             Kubeflow Pipelines: the connection, a compiled pipeline as a run
schedules            runs that Kubeflow starts by the clock; cron reads their expressions

Nothing here knows a stage or a family; `sandbox`, `serving` and `orchestration` use it.
"""
