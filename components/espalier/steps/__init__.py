"""One thin Kubeflow component per stage, one module each; `pipelines/` wires them.

A component turns KFP's paths and JSON into a stage's arguments and decides nothing. The body of a
component runs in a process of its own, so what it needs is imported inside it.

    training           the stage `train`, handed whoever poses its tasks
    running            profile, tracker, determinism and error text around one stage
    determinism        what must be set so that a run repeats itself bit for bit
    console            what a stage says on the terminal
    trackers           several listeners of one stage as one
    usage              wall seconds and peak memory of one stage
    placement          what a step's pod gets on the cluster, in the compiled pipeline
    pipeline_files     where `pipelines/` is: a checkout's folder, or the wheel's data
    profiles           a profile from its name, its path or its JSON
"""
