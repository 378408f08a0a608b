"""All that speaks to Kubernetes: one client module for each service.

kubernetes_api       the Kubernetes API: configuration, sending, repetition, errors
kubernetes_requests  what is sent to it

Nothing here knows a stage or a family; `sandbox`, `serving` and `orchestration` use it.
"""
