"""Stages as steps of a Kubeflow pipeline, and what every runner of a stage needs.

components      the KFP components: resolve_profile, one per stage and its launcher, require_valid
running         profile, tracker, determinism and shown outputs of one stage
refusing        message, exit code and termination message of a step that fails
placement       settings of a step's pod in the compiled pipeline
console         a stage's tracker on stderr
train_job_status  a stage's progress in the status of a TrainJob
pace            work done, and the time left
profiles        a profile by name, path, JSON or form; the folder `pipelines/`
given_model     the model that a run starts from: checks it, pushes it to S3, fetches it in a pod
stopping        Ctrl-C and SIGTERM end a run within seconds
"""
