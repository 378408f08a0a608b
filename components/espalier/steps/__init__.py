"""Stages as steps of a Kubeflow pipeline, and what surrounds a stage wherever it runs.

components      the KFP components: resolve_profile, one a stage and its launcher, require_valid
running         profile, tracker, determinism and what is shown, around one stage
refusing        message, exit code and termination message of a step that fails
placement       what a step's pod gets on the cluster, in the compiled pipeline
console         a stage's tracker on stderr
train_job_status  its progress in the status of a TrainJob
pace            work done, and the time left
profiles        a profile by name, path, JSON or form; where `pipelines/` is
given_model     the model that a run starts from: checked, pushed to S3, fetched by a pod
stopping        Ctrl-C and SIGTERM end a run within seconds
"""
