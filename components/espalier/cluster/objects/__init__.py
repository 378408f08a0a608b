"""Kubernetes objects of a run as dictionaries: pure functions, each with a golden file.

Objects that are the same for every run are YAML in `k8s/`. This package sends no requests.

names           names, labels, owners
pods            pod specs: security context, volumes, resources, placement
job             a stage as a Job
launched        objects that a stage's pod can launch to run the stage
kinds           the list of their kinds
ray_job         a RayJob of KubeRay
train_job       a TrainJob of Kubeflow Trainer
serving         the model version in the serving Deployment

by hand         python -m tests.unit.cluster.objects.golden   writes the golden files again
"""
