"""Resources of a run, estimated before it runs (memory, time, disk, GPU-hours, money), and limits.

sizes          the policy's parameters and its memory per token
figures        measurable figures (lengths, seconds, memory), with assumed values
probe          a run of the whole chain, cut to a minute, and the storage of its figures
probe_figures  the figures from the folder of a probe's run
sharing        positions that an update forwards for each token of its trajectories
work           tokens and episodes of each stage, from the profile
memory         resident memory by part: trainer, engine, KV cache
durations      seconds and GPU-hours by stage
pace           simulation of samplers and learner on machines of their own
disk           bytes of artifacts and checkpoints
prices         the price table
machine        cores, memory, disk and GPU of this machine
plan           the whole plan, and exceeded limits
showing        its text and its JSON
"""

from espalier.planning.machine import mebibytes, this_machine
from espalier.planning.plan import Limits, Plan, PlanOrder, make_plan
from espalier.planning.prices import PriceTable, read_prices
from espalier.planning.probe import read_probe, run_probe
from espalier.planning.showing import plan_json, plan_text

__all__ = [
    "Limits",
    "Plan",
    "PlanOrder",
    "PriceTable",
    "make_plan",
    "mebibytes",
    "plan_json",
    "plan_text",
    "read_prices",
    "read_probe",
    "run_probe",
    "this_machine",
]
