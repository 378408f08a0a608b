"""Runners of the chain: in this process, and under kfp.local; both fill the same run folder.

chain           the stages in order, as one table
in_process      runs the table, skips what is published, resumes what was killed
kfp_local       runs the compiled pipeline's components in subprocesses
runs            one run from profile to report, on either runner
step_command    what a step's container runs, with its input filled in
step_runner     one step with artifacts elsewhere: fetch, run, publish
pipelines       loading and compiling what `pipelines/` defines
run_directory   the folder of a run: one writer, durable writes
run_state       what a killed run needs to know when it comes back
timings         seconds and peak memory by stage, added up over attempts
tracking        the run's parent in MLflow, and the listeners of each stage

by hand         espalier run --profile smoke --out runs/try
"""
