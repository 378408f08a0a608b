"""The chain in this process, told to nobody."""

from contextlib import contextmanager

from espalier.chain import CHAIN, STAGES
from espalier.orchestration.in_process import ChainRun
from espalier.orchestration.run_directory import RunState
from espalier.records import NullTracker

SMALL_CHAIN = {
    "synthesis": {"train_tasks": 12, "dev_tasks": 4, "heldout_tasks": 6},
    "splits": {"heldout_share": 0.3, "dev_share": 0.3},
    "episode": {"max_turns": 2, "max_tokens": 96, "max_turn_tokens": 12},
    "curriculum": {"candidates": 4, "rollouts_per_task": 2, "screening_rollouts": 0,
                   "draw": "uniform"},
    "warm_start": {"dev_questions": 4},
    "training": {
        "steps": 2, "tasks_per_step": 2, "group_size": 4, "minibatches": 1, "dev_questions": 4,
        "evaluate_every": 2, "stop_after_idle_steps": 0,
    },
}  # fmt: skip
"""Sections of a profile whose chain ends in seconds."""


def chain_run(profile, run_dir, last="evaluate"):
    """Run the stages up to `last`; their manifests."""

    @contextmanager
    def silent(_):
        yield NullTracker()

    run_dir.mkdir(exist_ok=True)
    runner = ChainRun(
        profile=profile,
        run_dir=run_dir,
        state=RunState.load(run_dir),
        stage_tracker=silent,
        say=lambda _: None,
    )
    names = [link.name for link in CHAIN]
    return runner.execute(CHAIN[: names.index(last) + 1])


def inputs_of(stage, profile, run_dir):
    """Everything that the stage reads, made by the stages before it."""
    names = [link.name for link in CHAIN]
    chain_run(profile, run_dir, names[names.index(stage) - 1])
    return {name: run_dir / name for name in STAGES[stage].inputs}
