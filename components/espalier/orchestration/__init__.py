"""Runners of the chain: in this process, and under kfp.local; both fill the same run folder.

runs            one run from profile to report, on either runner, tracked in MLflow
in_process      runs the chain here: keeps what is published, resumes what was killed
kfp_local       runs the pipeline's components in subprocesses, with one log
step_runner     one step with artifacts elsewhere: fetch, run, publish
pipelines       loading and compiling what `pipelines/` defines
run_directory   the folder of a run: lock, state, times
finished_run    a run afterwards: its profile, judging a policy on its suite, chat
promotion       the registry behind promote, rollback, load and versions
results         what a finished run prints
doctor          what is installed, and what is missing

by hand         espalier run --profile smoke --out runs/try
"""
