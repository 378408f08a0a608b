"""Stages as steps of a Kubeflow pipeline, and what surrounds a stage wherever it runs.

components         the component of each stage, made from `espalier.chain`
train_on_ray       the component of `train` where training is a RayJob
resolve_profile    the form of a run becomes one checked profile
running            profile, tracker, determinism and error text around one stage
placement          what a step's pod gets on the cluster, in the compiled pipeline
console, trackers, usage        what a stage says, to whom, and what it costs
profiles, pipeline_files        a profile by name, path or JSON; where `pipelines/` is
"""
