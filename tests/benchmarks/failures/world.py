"""A world of forty-eight facts behind a search, and a policy that half knows how to ask.

RL learns on half of the facts, and the other half is the held-out score, by the true verifier
whatever a kind of failure does to the rewards of training. A run of the small policy takes seconds,
one of a given language model, which learns an adapter, some minutes.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from espalier.config import OptimizerConfig, PolicyConfig, Profile
from espalier.config.named_models import models_folder
from espalier.curriculum.pool import TaskPool
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.environments import policy_dialect
from espalier.policy.embedded import build_policy, train_tokenizer
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy_to_train
from espalier.records import FinalAnswer, NullTracker, Task, Verifier
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore
from espalier.training.demonstrations import encode_pieces
from espalier.training.health.canaries import canaries_of, right_share
from espalier.training.packing import TrainingSequence
from espalier.training.parallel import Processes
from espalier.training.rl.loop import LoopParts, RlLoop
from espalier.training.rl.models import build_layout, build_models
from espalier.training.rl.publishing import MemoryPublisher
from espalier.training.rl.sampling import GroupSampler
from espalier.training.supervised import (
    DevScore,
    SupervisedLoop,
    SupervisedPlan,
    dev_exact_match,
)
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_environments
from espalier_search.synthesis.search_wording import search_call
from tests.benchmarks.failures.kinds import DEV_QUESTIONS
from tests.factories.records import make_task

NAMES = (
    "lyon", "oslo", "rome", "cairo", "lima", "quito", "delhi", "seoul",
    "tunis", "accra", "hanoi", "minsk", "sofia", "vienna", "dakar", "havana",
)  # fmt: skip
RELATIONS = ("country", "river", "currency")
VALUES = (
    "amber", "basil", "cedar", "daisy", "ember", "fern", "grape", "hazel",
    "iris", "jade", "kelp", "lilac", "maple", "nettle", "olive", "pearl",
)  # fmt: skip
FACTS = {
    (relation, name): VALUES[(5 * place + 3 * number) % len(VALUES)]
    for number, relation in enumerate(RELATIONS)
    for place, name in enumerate(NAMES)
}
KEYS = tuple(FACTS)
NOTHING = "no results"


class Warm(NamedTuple):
    """The demonstrations that a policy sees first: too few to be sure."""

    steps: int
    rate: float


WARM, WARM_GIVEN = Warm(105, 1e-2), Warm(6, 5e-4)
RATE, RATE_GIVEN = 5e-4, 4e-5
"""Learning rate of a healthy run, of the small policy and of an adapter of a given model. A kind
names the former's; the latter's is as many times as high."""
GIVEN_POLICY = {"dialect": "react", "lora": {"rank": 32, "alpha": 64}}
GIVEN_TRAINING = {"tasks_per_step": 8, "group_size": 4}
"""As in the profile laptop, with fewer attempts a step."""


class World:
    """The search over the facts; a kind of failure may change what it answers."""

    def __init__(self) -> None:
        self.answers = True
        self._facts = dict(FACTS)

    def redraw(self, task: Task, rng: random.Random) -> Task:
        """Draw the task's value anew, so that training rewards copying and not remembering."""
        name, _, relation = task.task_id.partition("-")
        value = self._facts[relation, name] = rng.choice(VALUES)
        return task.model_copy(update={"verifier": Verifier(kind="exact_match", gold=(value,))})

    def observation(self, query: str) -> str:
        """Return the line of `NAME RELATION`."""
        words = query.split()
        for relation, name in KEYS:
            if self.answers and words == [name, relation]:
                return f"{name} | {relation}: {self._facts[relation, name]}"
        return NOTHING


def profile_of(settings: dict[str, Any], seed: int, model: str | None = None) -> Profile:
    """The profile of a run, with further settings of `training`.

    Args:
        settings: keys of [training].
        seed: of the run.
        model: name of the language model to train; None: the small policy.
    """
    training: dict[str, Any] = {
        "steps": 26,
        "tasks_per_step": 8,
        "group_size": 8,
        "evaluate_every": 2,
        "dev_questions": DEV_QUESTIONS,
        "stop_after_idle_steps": 0,
        "optimizer": {"learning_rate": RATE, "warmup_share": 0.0, "final_share": 1.0},
        **(GIVEN_TRAINING if model else {}),
        **settings,
    }
    if model:
        optimizer = training["optimizer"]
        rate = optimizer["learning_rate"] * RATE_GIVEN / RATE
        training["optimizer"] = optimizer | {"learning_rate": rate}
    return Profile.model_validate(
        {
            "seed": seed,
            "threads": 1,
            "policy": {"model": model, **GIVEN_POLICY} if model else {},
            "hardware": {"precision": "float32", "micro_batch_tokens": 1024} if model else {},
            "episode": {
                "max_turns": 4,
                "max_tokens": 320 if model else 128,
                "max_turn_tokens": 40 if model else 20,
            },
            "curriculum": {
                "pass_rate_band": [0.0, 1.0],
                "screening_rollouts": 0,
                "refresh_every": 1000,
                "explore_share": 0.0,
            },
            "training": training,
        }
    )


def tasks_of(keys: Sequence[tuple[str, str]]) -> list[Task]:
    """A task for each fact."""
    return [
        make_task(
            f"{name}-{relation}", f"{relation} of {name}?", gold=(FACTS[relation, name],),
            pattern=relation,
        )
        for relation, name in keys
    ]  # fmt: skip


def split_of(seed: int) -> tuple[list[Task], list[Task]]:
    """The tasks that a run trains on, and the held-out ones; halves drawn by the seed."""
    order = torch.randperm(len(KEYS), generator=torch.Generator().manual_seed(seed)).tolist()
    keys = [KEYS[place] for place in order]
    return tasks_of(keys[:-DEV_QUESTIONS]), tasks_of(keys[-DEV_QUESTIONS:])


@lru_cache(maxsize=1)
def _tokenizer() -> PreTrainedTokenizerFast:
    texts = [f"{r} of {n}? {n} {r} {n} | {r}: {v} {NOTHING} answer" for (r, n), v in FACTS.items()]
    return train_tokenizer(texts * 20, 420, SYNTAXES["tags"], SearchQA(Profile()).specs)


def _new_policy(seed: int) -> Policy:
    config = PolicyConfig(
        vocab_size=420,
        hidden_size=48,
        attention_heads=2,
        layers=("conv", "attention", "conv"),
        feed_forward_size=96,
    )
    tokenizer, tags = _tokenizer(), SYNTAXES["tags"]
    stops = tags.stop_texts(SearchQA(Profile()).specs)
    return Policy(build_policy(config, tokenizer, stops, max_tokens=256, seed=seed), tokenizer)


def warm_policy(folder: Path, profile: Profile) -> Policy:
    """A policy after demonstrations of all facts; kept in `folder`."""
    seed, name = profile.seed, profile.policy.model
    if name is None:
        policy, warm = _new_policy(seed), WARM
    else:
        directory = models_folder() / str(name)
        policy, warm = load_policy_to_train(directory, profile, digest="none"), WARM_GIVEN
    dialect = policy_dialect(SearchQA(profile), policy.tokenizer)
    tasks = dict(zip(KEYS, tasks_of(KEYS), strict=True))

    def sequences_at(step: int) -> list[TrainingSequence]:
        rng = random.Random(f"warm:{seed}:{step}")
        return [demonstration(tasks, rng, dialect) for _ in range(16)]

    plan = SupervisedPlan(
        name="warm",
        sequences_at=sequences_at,
        steps=warm.steps,
        optimizer=OptimizerConfig(learning_rate=warm.rate),
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=2048 if name is None else profile.hardware.micro_batch_tokens,
        checkpoint_every=warm.steps,
        hardware=Hardware(torch.device("cpu"), None),
    )
    store = CheckpointStore(folder / f"warm-{seed}", f"warm-{warm.steps}")
    SupervisedLoop(policy.model, plan, store).run(NullTracker())
    return policy


def demonstration(
    tasks: dict[tuple[str, str], Task], rng: random.Random, dialect: Dialect
) -> TrainingSequence:
    """One fact looked up; its value is drawn anew, so that it is copied and not remembered."""
    relation, name = key = rng.choice(KEYS)
    value = rng.choice(VALUES)
    pieces = (
        search_call(relation, f"{name} {relation}"),
        f"{name} | {relation}: {value}",
        FinalAnswer(value, "answer"),
    )
    return encode_pieces(tasks[key].prompt, pieces, dialect)


class Pieces(NamedTuple):
    """What a kind of failure may wrap or change before the loop is built."""

    profile: Profile
    world: World
    pool: TaskPool
    roller: Roller
    publisher: MemoryPublisher


class Changes(NamedTuple):
    """What a kind of failure puts in the place of a healthy run's parts."""

    reward: Callable[[Sequence[Trajectory]], list[Trajectory]]
    judge: Callable[[Sequence[Trajectory]], list[Trajectory]]
    """The same between two steps, for canaries."""
    roller: object
    publisher: object


SCORED_SAMPLES, SCORED_SAMPLES_GIVEN = 24, 4
"""Attempts at each held-out question that a final score counts."""


class HeldOut(NamedTuple):
    """The held-out questions, with the true verifier and a search that always works."""

    roller: Roller
    tasks: Sequence[Task]
    samples: int
    canaries: Sequence[Task]
    judge: Callable[[Sequence[Trajectory]], list[Trajectory]]
    """Judges the canaries as the kind of failure judges training."""

    def greedy(self) -> DevScore:
        """Score one greedy attempt at each question, as training does to choose weights."""
        score = dev_exact_match(self.roller, self.tasks)
        asked = self.roller.roll_out(self.canaries, samples=1, temperature=0.0, seed=0)
        judged = [self.judge([attempt])[0] for attempt in asked]
        return score._replace(canaries_right=right_share(judged))

    def sampled(self) -> float:
        """Share of sampled attempts that are right, 0-1.

        It resolves less than one greedy answer, which is 4 points of 24 questions.
        """
        attempts = self.roller.roll_out(self.tasks, samples=self.samples, temperature=1.0, seed=0)
        return sum(attempt.is_right for attempt in attempts) / len(attempts)


class Built(NamedTuple):
    """A run that has not begun."""

    loop: RlLoop
    heldout: HeldOut


def build_loop(
    profile: Profile, folder: Path, warm: Path, change: Callable[[Pieces], Changes]
) -> Built:
    """A loop over the world.

    Args:
        profile: of the run.
        folder: of its checkpoints.
        warm: of warm policies.
        change: what the kind of failure changes.
    """
    trained = warm_policy(warm, profile)
    # a copy, so that weights can fail to arrive
    sampled = Policy(copy.deepcopy(trained.model), trained.tokenizer)
    world, dev_world = World(), World()
    tasks, heldout_tasks = split_of(profile.seed)
    family = SearchQA(profile)
    roller = Roller.local(sampled, search_environments(world, family), profile, for_training=True)
    judged = Policy(trained.model, trained.tokenizer)
    dev_roller = Roller.local(judged, search_environments(dev_world, family), profile)
    hardware = Hardware.from_config(profile.hardware)
    models = build_models(trained.model, profile.training, hardware, Processes())
    pool = TaskPool(
        tasks,
        profile.curriculum,
        group_size=profile.training.group_size,
        rename=world.redraw,
    )
    publisher = MemoryPublisher(models.policy.model, sampled, (roller, dev_roller))
    changes = change(Pieces(profile, world, pool, roller, publisher))

    samples = SCORED_SAMPLES_GIVEN if profile.policy.model else SCORED_SAMPLES
    count = profile.training.health.canaries
    canaries = canaries_of(family, heldout_tasks, count, profile.seed)
    heldout = HeldOut(dev_roller, heldout_tasks, samples, canaries, changes.judge)
    parts = LoopParts(
        models=models,
        layout=build_layout(trained.model, profile, hardware, Processes()),
        sampler=GroupSampler(
            changes.roller,
            pool,
            profile.training,
            seed=profile.seed,
            reward_function=changes.reward,
        ),
        pool=pool,
        dev_score=heldout.greedy,
        publisher=changes.publisher,
        dialect=roller.dialect,
    )
    return Built(RlLoop(profile, parts, CheckpointStore(folder, "run")), heldout)
