"""What it pays to draft actions from earlier rollouts where prompts repeat: tokens a second, ids.

    python -m tests.benchmarks.rollout.speculation --run runs/demo

The policies and the tasks of a finished run, its tools and its rollout settings. Both engines share
whole turns and play the same episodes with the same seeds and weights, in turns; one of them has
played the same tasks before, with earlier weights, and drafts from what it sampled then. The
earlier weights lie on the line between the warm start's and the trained policy's, as far back as
the share of the training's steps says. The drafting engine is a new one in every repetition. Cases:

dev             the dev questions, greedy, after those of the last look at them (evaluate_every
                steps before): what every training does
dev_few         the first case with 8 rows, as when a few agents use a served policy
dev_hard        the case dev after the warm start's own answers: the whole training lies between
groups          16 tasks with 16 attempts each at temperature 1, after other attempts at them
                (evaluate_every steps before): what a step of training samples again; such sessions
                are drafted with rollout.speculation = "all" alone
attempts        64 tasks with 4 attempts each at temperature 1, after a greedy one, same weights;
                likewise
first           as many held-out questions, greedy, after others: what keeping them costs

ratio       tokens sampled a second of the engine that drafts, over the other's; of processor time,
            the tools' included; `engine_ratio` of the engine's steps alone
equal       sampled tokens that are the same in both, of all; and the largest difference between the
            log-probs that they were recorded with: products round by their shape
error       of one repetition's log-probs, greedy cases: the largest difference to those that the
            policy has in double precision, of both engines and of transformers in single precision;
            two engines that round differently can be as far apart as both are from there
drafted     tokens that were read as drafts, for each token sampled, and how many of them were kept
forwarded   tokens that went through the model, for each token sampled

The last line is one JSON object. About five minutes with one thread.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.environments import Environments, family_of
from espalier.policy.loading import Policy, load_policy
from espalier.records import Task
from espalier.records.task import read_tasks
from tests.benchmarks.finished_run import add_run_options, profile_of_run
from tests.benchmarks.keeping import provenance
from tests.benchmarks.rollout.shared_turns import (
    ROWS,
    Compared,
    Contestant,
    Played,
    agreement_figures,
    ratio_figures,
)
from tests.unit.rollout.play import plain_logprobs

Weights = dict[str, Tensor]

VIEWS = {"dev": "dev", "heldout": "full", "tasks": "train"}
"""What the tools may know, by the file of the tasks."""


class Case(NamedTuple):
    """Episodes, and what the drafting engine has played before."""

    tasks: str
    """Stage and file of a run, and how many of its tasks a repetition plays."""
    questions: int
    samples: int
    temperature: float
    back: float | None
    """How much of the training lies between both; None: other tasks were played before."""
    temperature_before: float
    samples_before: int = 1
    rows: int = ROWS
    """Episodes that are played at one time."""


def cases_of(profile: Profile) -> dict[str, Case]:
    training = profile.training
    look = training.evaluate_every / training.steps
    dev, train = "synthetic/tasks/dev.jsonl", "curriculum/tasks.jsonl"
    questions = training.dev_questions
    return {
        "dev": Case(dev, questions, 1, 0.0, look, 0.0),
        "dev_few": Case(dev, questions, 1, 0.0, look, 0.0, rows=8),
        "dev_hard": Case(dev, questions, 1, 0.0, 1.0, 0.0),
        "groups": Case(train, 16, 16, 1.0, look, 1.0, 16),
        "attempts": Case(dev, 64, 4, 1.0, 0.0, 0.0),
        "first": Case("synthetic/tasks/heldout.jsonl", questions, 1, 0.0, None, 0.0),
    }


@dataclass(frozen=True)
class Line:
    """The policy in memory, and the weights between a warm start and what became of it."""

    policy: Policy
    warm: Weights
    trained: Weights

    @classmethod
    def of(cls, run: Path) -> Line:
        warm = load_policy(run / "warm_policy" / "policy").model.state_dict()
        policy = load_policy(run / "trained_policy" / "policy")
        trained = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
        return cls(policy, warm, trained)

    def go(self, back: float) -> None:
        """Take the weights `back` of the way from the trained ones to the warm start's."""
        between = {name: it.lerp(self.warm[name], back) for name, it in self.trained.items()}
        self.policy.model.load_state_dict(between)


@dataclass
class Found:
    """Repetitions of a case: without drafts, and with them."""

    name: str
    pairs: list[tuple[Played, ...]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    error: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Its figures."""
        sampled = sum(ahead.sampled for _, ahead in self.pairs)
        return {
            "case": self.name,
            **ratio_figures(self.pairs),
            "tokens_per_processor_s": {
                name: round(
                    statistics.median(
                        pair[at].sampled / pair[at].processor_s for pair in self.pairs
                    )
                )
                for at, name in enumerate(("plain", "drafted"))
            },
            "forwarded_per_sampled": {
                name: round(sum(pair[at].forwarded for pair in self.pairs) / sampled, 2)
                for at, name in enumerate(("plain", "drafted"))
            },
            "drafted_per_sampled": round(self.drafted / sampled, 3),
            "accepted_share": round(self.accepted / self.drafted, 3) if self.drafted else None,
            **agreement_figures(self.compared),
            "error": self.error,
        }


def errors(policy: Policy, played: dict[str, Played]) -> dict[str, float]:
    """The largest difference to log-probs in double precision, nats, by who recorded them."""
    exact_model = copy.deepcopy(policy.model).double()
    largest = dict.fromkeys((*played, "transformers"), 0.0)
    for name, one in played.items():
        for trajectory in one.trajectories:
            assert trajectory.window_starts == (0,), "an episode of one context"
            context = (trajectory.token_ids, trajectory.action_mask)
            exact = plain_logprobs(exact_model, *context)
            is_sampled = torch.tensor(trajectory.action_mask, dtype=torch.bool)
            found = {
                name: torch.tensor(trajectory.behavior_logprobs)[is_sampled],
                "transformers": plain_logprobs(policy.model, *context),
            }
            for whose, logprobs in found.items():
                largest[whose] = max(largest[whose], float((logprobs - exact).abs().max()))
    return largest


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_run_options(parser)
    parser.add_argument("--cases", nargs="+", help="default: all")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    run: Path = options.run
    profile = profile_of_run(options)
    prepare_torch(options.threads)
    cases = cases_of(profile)
    if unknown := set(options.cases or ()) - set(cases):
        sys.exit(f"--cases: no {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    line = Line.of(run)
    found = []
    with family_of(profile).environments(run / "knowledge") as environments_over:
        for name in options.cases or cases:
            case = cases[name]
            view = VIEWS[Path(case.tasks).stem]
            tasks = read_tasks(run / case.tasks)
            contestants = (line, environments_over(view), profile)
            measured = measure(name, case, tasks, contestants, options.repetitions)
            found.append(measured.summary())
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "speculation", **provenance(options.threads), "cases": found}))


def measure(
    name: str,
    case: Case,
    tasks: Sequence[Task],
    contestants: tuple[Line, Environments, Profile],
    repetitions: int,
) -> Found:
    """Play the episodes on both engines, first on the one and next time first on the other."""
    found = Found(name)
    line, environments, profile = contestants
    plain = Contestant.of(line.policy, environments, profile, rows=case.rows, shares_turns=True)
    played: dict[str, Played] = {}
    for seed in range(-1, repetitions):
        start = (seed + 1) * case.questions % max(1, len(tasks) - case.questions + 1)
        chosen = tasks[start : start + case.questions]
        episodes = (chosen, case.samples, seed, case.temperature)
        ahead = Contestant.of(
            line.policy,
            environments,
            profile,
            rows=case.rows,
            shares_turns=True,
            speculation="all",
            dialect=plain.roller.dialect,  # which remembers the tokens of texts
        )
        others = [task for task in tasks if task not in chosen]
        before = chosen if case.back is not None else others[: len(chosen)]
        line.go(case.back or 0.0)
        ahead.play(before, case.samples_before, -2 - seed, case.temperature_before)
        line.go(0.0)
        plain.play(*episodes)  # untimed: tools keep answers
        if seed < 0:
            continue  # and everything is warm
        counters = ahead.engine.counters
        drafted_before, accepted_before = counters.drafted, counters.accepted
        played = {}
        for name in ("drafted", "plain") if seed % 2 else ("plain", "drafted"):
            gc.collect()  # of the other's episodes
            played[name] = (ahead if name == "drafted" else plain).play(*episodes)
        found.compared.append(Compared.of(played["plain"], played["drafted"]))
        found.pairs.append(
            tuple(played[name]._replace(trajectories=[]) for name in ("plain", "drafted"))
        )
        found.drafted += counters.drafted - drafted_before
        found.accepted += counters.accepted - accepted_before
    if case.temperature == 0:
        found.error = errors(line.policy, played)
    return found


if __name__ == "__main__":
    main()
