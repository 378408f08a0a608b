"""What a run creates on a cluster, as dictionaries: pure functions, each pinned by a golden file.

What never changes is YAML in `k8s/`; what is here depends on a run. Nothing talks to a cluster.

names           names, labels, owners
pods            what every pod of ours has in common: rights, volumes, where it may run
volumes         where a pod keeps what
job             a stage as a Job
ray_job         training on several nodes as a KubeRay RayJob
serving         the version that the serving Deployment is to serve

by hand         python -m tests.unit.cluster.objects.golden   writes the golden files again
"""
