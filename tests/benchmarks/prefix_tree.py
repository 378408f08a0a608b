"""The update on a prefix tree beside the packed one: positions forwarded, seconds, gradients.

    python -m tests.benchmarks.prefix_tree --run runs/demo
    python -m tests.benchmarks.prefix_tree --run runs/sql --profile pipelines/profiles/sql.toml

Two kinds of groups: those that a finished run's last step learned from, with its policy and its
profile's minibatches, and made ones of 8 attempts behind prompts of 1,000 tokens, with the embedded
policy's shape. Both layouts apply the same update to the same rows, in turns, so that what else the
machine does falls on both.

bound       tokens of the trajectories, over the nodes of one tree for each minibatch: how many
            times fewer positions the data's own sharing lets an update forward
reached     the same tokens over the positions that the update on the tree forwards; micro-batches
            cut trees, so it is at most the bound
speed-up    seconds of the packed update over those of the tree's, the median of the pairs; of wall
            time, and of processor time, which a busy machine changes less
difference  the largest between a gradient of all rows on the tree and one with each trajectory in a
            row of its own, as a share of the largest gradient; in float64 and in float32

The last line is one JSON object. About two minutes with one thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.policy.hardware import Hardware
from espalier.policy.loading import load_policy
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.training.parallel import Processes
from espalier.training.prefix_tree import prefix_tree_of
from espalier.training.rl.assessment import Assessor, StepContext
from espalier.training.rl.models import Layout, build_layout, build_models
from espalier.training.rl.policy_gradient import Minibatch, PolicyGradient
from espalier.training.rl.rows import Group, Rows, dense_rows, minibatches, rows_of, totals
from espalier.training.rl.update import PolicyUpdate
from espalier.training.scoring import ScoreRequest
from tests.benchmarks.finished_run import add_run_options, profile_of_run
from tests.benchmarks.keeping import provenance
from tests.benchmarks.rollout.model import benchmark_tokenizer, build_model
from tests.benchmarks.training.here import trajectory_of
from tests.benchmarks.training.material import FIRST_WORD_ID, LAST_WORD_ID, Attempt

CPU = Hardware(torch.device("cpu"), None)
REQUEST = ScoreRequest(entropy=True)
LAYOUTS = ("packed", "prefix_tree")
PROMPT_TOKENS = 1000
LONG_TASKS, LONG_GROUP = 2, 8


@dataclass(frozen=True)
class Case:
    """Groups, the policy that learns from them, and how."""

    name: str
    model: PreTrainedModel
    groups: list[Group]
    profile: Profile

    @property
    def rows(self) -> Rows:
        """All trajectories of the step."""
        return dense_rows(self.groups, with_observations=False)

    def layout(self, name: str) -> Layout:
        """The layout of that name, for the profile."""
        training = self.profile.training.model_copy(update={"layout": name})
        profile = self.profile.model_copy(update={"training": training})
        return build_layout(self.model, profile, CPU, Processes())


class Timed(NamedTuple):
    """One update."""

    wall_s: float
    processor_s: float
    positions: int


class Speedup(NamedTuple):
    """Of pairs of updates that were made one after the other."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Speedup:
        """Of seconds of the packed update and of the tree's."""
        ratios = [round(packed / tree, 3) for packed, tree in pairs]
        return cls(round(statistics.median(ratios), 3), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_run_options(parser)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare_torch(options.threads)  # as a stage does
    cases = [case_of_run(options), long_prompts(1), long_prompts(2)]
    found = [report(case, options.repeats) for case in cases]
    print(json.dumps({"benchmark": "prefix_tree", **provenance(options.threads), "cases": found}))


def case_of_run(options: argparse.Namespace) -> Case:
    """The groups of a run's last step, with the weights that it ended with."""
    run: Path = options.run
    sampled = run / "trained_policy" / "trajectories.parquet"
    if not sampled.is_file():
        sys.exit(f"{sampled}: no such file; name a finished run with --run (`make demo` makes one)")
    profile = profile_of_run(options)
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(sampled):
        if any(trajectory.action_mask):
            by_group.setdefault(trajectory.group_id, []).append(trajectory)
    groups = [
        Group(trajectories=tuple(found))
        for found in by_group.values()
        # without those that screening or the filter of equal rewards left out
        if len(found) >= profile.training.group_size and len({t.total_reward for t in found}) > 1
    ]
    if not groups:
        sys.exit(f"{sampled}: no whole group with unequal rewards; name another run")
    model = load_policy(run / "trained_policy" / "policy").model
    return Case(f"last step of {run}", model, groups[: profile.training.tasks_per_step], profile)


def long_prompts(parts: int) -> Case:
    """Made groups: a prompt of 1,000 tokens, one or two turns, updates of `parts` minibatches."""
    rng = random.Random(0)
    made = []
    for task in range(LONG_TASKS):
        prompt = words(rng, PROMPT_TOKENS)
        attempts = [long_attempt(rng, prompt, float(n % 2)) for n in range(LONG_GROUP)]
        made.append(Group(trajectories=tuple(trajectory_of(task, one) for one in attempts)))
    training = {"tasks_per_step": LONG_TASKS, "group_size": LONG_GROUP, "minibatches": parts}
    profile = Profile.model_validate({"episode": {"max_tokens": 1400}, "training": training})
    model = build_model("lfm2", "1m", benchmark_tokenizer())
    return Case(f"prompts of 1,000 tokens, minibatches={parts}", model, made, profile)


def long_attempt(rng: random.Random, prompt: list[int], reward: float) -> Attempt:
    """P P P A A O O A A: 12 to 40 tokens an action, 20 to 60 an observation."""
    token_ids, mask, spans = list(prompt), [0] * len(prompt), []
    turns = rng.randint(1, 2)
    for turn in range(turns):
        start = len(token_ids)
        token_ids += words(rng, rng.randint(12, 40))
        end = len(token_ids)
        token_ids += words(rng, rng.randint(20, 60)) if turn + 1 < turns else []
        mask += [1] * (end - start) + [0] * (len(token_ids) - end)
        spans.append((start, end, len(token_ids)))
    return Attempt(token_ids, mask, spans, reward)


def words(rng: random.Random, count: int) -> list[int]:
    """Ids of tokens that are no control marks."""
    return [rng.randint(FIRST_WORD_ID, LAST_WORD_ID) for _ in range(count)]


def report(case: Case, repeats: int) -> dict[str, object]:
    """Measure one case, and print it."""
    rows = case.rows
    tokens = int(rows.total_tokens_B.sum())
    timed = updates(case, rows, repeats)
    positions = {name: measured[0].positions for name, measured in timed.items()}
    nodes = minibatch_nodes(case, rows)
    bound, reached = tokens / nodes, tokens / positions["prefix_tree"]
    wall = Speedup.of([(a.wall_s, b.wall_s) for a, b in zip(*timed.values(), strict=True)])
    processor = Speedup.of(
        [(a.processor_s, b.processor_s) for a, b in zip(*timed.values(), strict=True)]
    )
    gaps = {str(kind): difference(case, rows, kind) for kind in (torch.float64, torch.float32)}
    print(f"\n{case.name}: {len(case.groups)} groups, {len(rows)} trajectories, {tokens} tokens")
    print(f"  bound {bound:.2f}, reached {reached:.2f} ({reached / bound:.1%} of it)")
    for name, measured in timed.items():
        walls = [one.wall_s for one in measured]
        print(
            f"  {name:12s} {positions[name]:7d} positions  {statistics.median(walls):7.3f} s "
            f"({min(walls):.3f}-{max(walls):.3f}), "
            f"{statistics.median(one.processor_s for one in measured):.3f} s of a processor"
        )
    print(f"  speed-up {wall}, of processor time {processor}")
    for kind, gap in gaps.items():
        print(f"  difference in {kind}: {gap:.1e} of the largest gradient", flush=True)
    return {
        "case": case.name,
        "trajectories": len(rows),
        "tokens": tokens,
        "bound": round(bound, 3),
        "reached": round(reached, 3),
        "share_of_bound": round(reached / bound, 4),
        "positions": positions,
        "wall_s": {n: [round(one.wall_s, 4) for one in found] for n, found in timed.items()},
        "processor_s": {
            name: [round(one.processor_s, 4) for one in found] for name, found in timed.items()
        },
        "speed_up": wall,
        "speed_up_of_processor_time": processor,
        "gradient_difference": gaps,
    }


def minibatch_nodes(case: Case, rows: Rows) -> int:
    """Nodes of a tree for each minibatch of the timed update."""
    rng = random.Random("minibatch:0:0")  # as the update draws them
    units = [(row,) for row in range(len(rows))]
    parts = minibatches(units, count=case.profile.training.minibatches, rng=rng)
    return sum(
        prefix_tree_of([rows.sequences[row] for row in rows_of(part)]).num_tokens for part in parts
    )


def updates(case: Case, rows: Rows, repeats: int) -> dict[str, list[Timed]]:
    """Each layout's updates of a copy of the policy, in turns, after one that is not timed."""
    training = case.profile.training.model_copy(update={"epochs": 1})
    learners = {}
    for name in LAYOUTS:
        model = copy.deepcopy(case.model)
        models = build_models(model, training, CPU, Processes())
        how = case.layout(name)
        learners[name] = (model, PolicyUpdate(models, training, how, max_action_tokens=400))
    units = [(row,) for row in range(len(rows))]
    timed: dict[str, list[Timed]] = {name: [] for name in LAYOUTS}
    for repeat in range(repeats + 1):
        for name, (model, update) in learners.items():
            with counted_positions(model) as counted:
                began_s, processor_s = time.perf_counter(), time.process_time()
                update.apply(rows, units, StepContext(0, REQUEST))
                wall_s = time.perf_counter() - began_s
                processor_s = time.process_time() - processor_s
            if repeat:
                timed[name].append(Timed(wall_s, processor_s, sum(counted)))
    return timed


@contextmanager
def counted_positions(model: PreTrainedModel) -> Iterator[list[int]]:
    """Positions, padding included, of each forward pass in the block."""
    counted: list[int] = []
    handle = model.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: counted.append(inputs[0].numel())
    )
    yield counted
    handle.remove()


def difference(case: Case, rows: Rows, kind: torch.dtype) -> float:
    """The largest difference between gradients on the tree and of each trajectory by itself."""
    model = copy.deepcopy(case.model)
    torch.nn.Module.to(model, kind)  # PreTrainedModel.to has no usable type
    tree, apart = (
        gradient(case, model, rows, how)
        for how in (case.layout("prefix_tree"), replace(case.layout("packed"), row_tokens=1))
    )
    largest = max(float(found.abs().max()) for found in apart)
    return max(float((a - b).abs().max()) for a, b in zip(tree, apart, strict=True)) / largest


def gradient(case: Case, model: PreTrainedModel, rows: Rows, how: Layout) -> Sequence[torch.Tensor]:
    """The gradient of one minibatch of all rows."""
    algorithm = case.profile.training.algorithm
    models = build_models(model, case.profile.training, CPU, Processes())
    assessment = Assessor(models, algorithm, how).assess(rows, REQUEST, kl_coefficient=0.0)
    units = [(row,) for row in range(len(rows))]
    minibatch = Minibatch(
        rows=rows,
        assessment=assessment,
        units=units,
        totals=totals(units, assessment.loss_mask_BT, max_tokens=400),
    )
    model.zero_grad(set_to_none=True)
    PolicyGradient(models.policy, algorithm, how).add(minibatch, REQUEST, kl_coefficient=0.0)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


if __name__ == "__main__":
    main()
