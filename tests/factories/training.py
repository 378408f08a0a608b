"""A policy of a few thousand parameters that answers some questions of a tiny world."""

from contextlib import contextmanager
from functools import lru_cache

import torch

from espalier.config import OptimizerConfig, Profile
from espalier.policy.hardware import Hardware
from espalier.records import FinalAnswer, NullTracker
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore, cloned_weights
from espalier.training.demonstrations import encode_pieces
from espalier.training.supervised import SupervisedLoop, SupervisedPlan
from espalier_search.synthesis.search_wording import search_call
from tests.factories import records
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect, tiny_policy

FACTS = {"lyon": "france", "france": "euro", "paris": "italy", "italy": "spain", "spain": "paris"}
SEARCH = LookupSearch(f"{name} | country: {value}" for name, value in FACTS.items())

PROFILE = Profile.model_validate(
    {
        "episode": {"max_turns": 2, "max_tokens": 64, "max_turn_tokens": 14},
        "curriculum": {"pass_rate_band": [0.01, 0.99], "refresh_every": 2},
        "training": {
            "steps": 6,
            "tasks_per_step": 2,
            "group_size": 6,
            "evaluate_every": 2,
            "algorithm": {
                "filters": [
                    {"name": "zero_variance", "action": "regenerate", "max_regenerations": 1}
                ]
            },
        },
    }
)


CPU = Hardware(torch.device("cpu"), None)


def make_task(name, number=0):
    return records.make_task(
        f"{name}-{number}",
        f"country of {name}?",
        gold=(FACTS.get(name, "x"),),
        pattern=name,
    )


TASKS = [make_task(name) for name in FACTS]


def make_trajectory(task, reward, **fields):
    """A trajectory as a scripted roller returns it: only its task and its reward matter."""
    return records.make_trajectory(
        task.task_id,
        messages=task.prompt,
        reward={"outcome": float(reward), "format": 0.0},
        **fields,
    )


def demonstration(task, dialect=None):
    """How a teacher would answer, as a training sequence; of the tiny policy without a dialect."""
    name = task.task_id.partition("-")[0]
    pieces = (
        search_call("country", name),
        SEARCH.observation(name),
        FinalAnswer(FACTS[name], "answer"),
    )
    return encode_pieces(task.prompt, pieces, dialect or tiny_dialect())


def supervised_plan(**changes):
    sequences = [demonstration(task) for task in TASKS]
    settings = {
        "name": "tiny",
        "sequences_at": lambda step: [sequences[(step + i) % len(sequences)] for i in range(4)],
        "steps": 60,
        "optimizer": OptimizerConfig(learning_rate=2e-2),
        "row_tokens": 64,
        "micro_batch_tokens": 128,
        "checkpoint_every": 60,
        "hardware": CPU,
    }
    return SupervisedPlan(**(settings | changes))


@lru_cache(maxsize=2)
def _warm_weights(directory, steps):
    policy = tiny_policy()
    store = CheckpointStore(directory, "warm")
    SupervisedLoop(policy.model, supervised_plan(steps=steps), store).run(NullTracker())
    return cloned_weights(policy.model)


def warm_policy(directory, steps=100):
    """The tiny policy after a short warm start: it answers half the questions, at temperature 1."""
    policy = tiny_policy()
    policy.model.load_state_dict(_warm_weights(directory, steps))
    return policy


def warm_roller(policy):
    return Roller.local(policy, lookup_environments(SEARCH, PROFILE), PROFILE)


class Interrupted(Exception):
    """Stands for a kill: what is in memory is gone, what was written stays."""


class InterruptingTracker(NullTracker):
    """Kills a loop when it has done `steps` more steps."""

    def __init__(self, steps):
        self._steps = steps

    @contextmanager
    def progress(self, description, total):
        yield self

    def advance(self, count=1, **shown):
        del count
        if shown:  # a resumed loop first reports the steps that were done before
            self._steps -= 1
        if self._steps == 0:
            raise Interrupted
