"""All that speaks to Kubernetes, Kubeflow and Ray: one client module for each service.

objects/             what a run creates on a cluster, as dictionaries: pure functions
kubernetes_api       the Kubernetes API: configuration, sending, repetition, errors
kubernetes_requests  what is sent to it
ray_jobs             RayJobs, and a step as the driver of one
ending               what a step does when it is asked to end
kubeflow             Kubeflow Pipelines: the connection, a compiled pipeline as a run
schedules            runs that Kubeflow starts by the clock; cron reads their expressions

It knows the profile and no stage: what is compiled for Kubeflow, and what a step does, come from
`orchestration`. Sandboxes (`sandbox`) and the served version (`serving`) use the client from here.
"""
