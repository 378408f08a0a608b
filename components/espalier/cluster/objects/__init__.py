"""Kubernetes objects of a run as dictionaries: pure functions, each with a golden file.

Objects that are the same for every run are YAML in `k8s/`. Nothing here talks to a cluster.

names           names, labels, owners
pods            pod specs: security context, volumes, resources, placement
job             a stage as a Job
launched        what a stage's pod can launch instead: one object of one kind
kinds           the list of these kinds
ray_job         a RayJob of KubeRay
train_job       a TrainJob of Kubeflow Trainer
serving         the model version in the serving Deployment

by hand         python -m tests.unit.cluster.objects.golden   writes the golden files again
"""
