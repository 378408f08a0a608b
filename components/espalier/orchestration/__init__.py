"""Runners of the chain, in this process and under kfp.local, and commands on finished runs.

runs            one run from profile to report, on either runner, tracked in MLflow
in_process      runs the chain in this process: keeps current artifacts, resumes killed stages
kfp_local       runs the pipeline's components in subprocesses, with one log
step_runner     one step with remote artifacts: fetch, run, publish
pipelines       loads and compiles the pipelines of `pipelines/`
run_directory   the folder of a run: lock, state, times
finished_run    a finished run: its profile, judging a policy on its suite, chat
promotion       the registry's part of promote, rollback, load and versions
results         the table that a finished run prints
doctor          checks what is installed and what is missing

by hand         espalier run --profile smoke --out runs/try
"""
