"""Next-token training on masked sequences: pre-stage, continued pre-training and warm start."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from transformers import PreTrainedModel

from espalier.config import OptimizerConfig
from espalier.policy.hardware import Hardware, copy_weights
from espalier.records import Task, Tracker
from espalier.rollout.roller import TrajectorySampler
from espalier.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    restore_random_state,
)
from espalier.training.optimization import Updater, learning_rate, skipped_warning
from espalier.training.packing import TrainingSequence, convolution_reach, micro_batches, pack
from espalier.training.parallel import load_whole_weights, whole_weights
from espalier.training.prefix_tree import prefix_tree_of
from espalier.training.scoring import Batch, score
from espalier.training.tree_forward import forwards_trees

T = TypeVar("T")


class EpochOrder(Generic[T]):
    """Draws a step's items from shuffled epochs; depends only on the step number."""

    def __init__(self, items: Sequence[T], per_step: int, seed: int) -> None:
        self._items = items
        self._per_step = per_step
        self._seed = seed
        self._order = lru_cache(maxsize=4)(self._shuffled)

    def at(self, step: int) -> list[T]:
        """Return the items of optimizer step `step`, counted from 0."""
        first = step * self._per_step
        return [self._draw(number) for number in range(first, first + self._per_step)]

    def _draw(self, number: int) -> T:
        epoch, position = divmod(number, len(self._items))
        return self._items[self._order(epoch)[position]]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._items)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        return order


HISTORY_COLUMNS = ("step", "loss", "learning_rate", "grad_norm", "tokens", "dev_em")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedPlan:
    """The sequences to train on, the number of steps, and the settings."""

    name: str
    sequences_at: Callable[[int], Sequence[TrainingSequence]]
    """Returns the sequences of a step; depends only on the step number, so that a resumed run
    repeats it."""
    steps: int
    optimizer: OptimizerConfig
    row_tokens: int
    micro_batch_tokens: int
    checkpoint_every: int
    hardware: Hardware
    dev_score: Callable[[], DevScore] | None = None
    """Scores the current weights at every checkpoint; the best weights are kept, the latest of
    equally good ones."""
    steps_before: int = 0
    """Number of steps of an earlier round, from which the history continues to count."""
    score_before: float | None = None
    """Dev score of the weights that the loop begins with: they are kept if all later ones are
    worse. None keeps the best of the later ones."""


@dataclass(slots=True)
class SupervisedResult:
    """The history of the loop, and its throughput."""

    history: list[dict[str, float]]
    tokens: int
    seconds: float
    best_step: int
    best_score: float | None
    """Dev score of the weights that were kept; None if the plan has no `dev_score`."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, without padding and evaluations."""
        return self.tokens / self.seconds if self.seconds else 0.0


_TREE_BELOW = 0.8
"""Nodes per token below which a batch is forwarded as a tree, whose attention takes longer than
that of rows."""


class SupervisedLoop:
    """Trains `model` in place; ends with the best weights where the plan has a `dev_score`."""

    _shown = ("loss", "dev_em")
    """Columns of the history that a progress bar shows."""

    def __init__(
        self, model: PreTrainedModel, plan: SupervisedPlan, store: CheckpointStore
    ) -> None:
        self._sampled = model
        self._model = plan.hardware.place(model)
        self._plan = plan
        self._store = store
        self._updater = Updater(self._model, plan.optimizer, plan.steps)
        self._gap = convolution_reach(model)
        self._forwards_trees = forwards_trees(self._model)
        self._history: list[dict[str, float]] = []
        score = -1.0 if plan.score_before is None else plan.score_before
        self._best = (score, plan.steps_before, whole_weights(model))
        self._tokens = 0
        self._seconds = 0.0

    def run(self, tracker: Tracker) -> SupervisedResult:
        """Train from the newest checkpoint, or from the start."""
        plan = self._plan
        start = self._resume()
        with tracker.progress(plan.name, plan.steps) as progress:
            progress.advance(start)
            saved = {}
            for step in range(start, plan.steps):
                began_s = time.perf_counter()
                row = self._step(step)
                if (step + 1) % plan.checkpoint_every == 0 or step + 1 == plan.steps:
                    self._evaluate(step + 1, row)
                    self._history.append(row)
                    self._save(step + 1)
                    saved = {"checkpoint_step": float(step + 1)}
                else:
                    self._history.append(row)
                if row["skipped_updates"]:
                    tracker.note(skipped_warning(step + 1, skipped=1))
                # figures that differ from run to run go to trackers, never into the history
                step_s = time.perf_counter() - began_s
                timings = {"step_s": step_s, "tokens_per_s": row["tokens"] / step_s, **saved}
                figures = {name: value for name, value in row.items() if name != "step"}
                tracker.metrics(figures | timings, step=plan.steps_before + step + 1)
                shown = {name: row[name] for name in self._shown if name in row}
                progress.advance(1, **shown)
        if plan.dev_score is not None:
            load_whole_weights(self._model, self._best[2])
        copy_weights(self._model, self._sampled)
        score, step, _ = self._best
        best_score = None if plan.dev_score is None else score
        return SupervisedResult(self._history, self._tokens, self._seconds, step, best_score)

    def _step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        plan = self._plan
        self._model.train()
        figures = self._add_gradient(plan.sequences_at(step))
        norm = self._updater.apply(step)
        self._model.eval()
        self._tokens += int(figures["tokens"])
        self._seconds += time.perf_counter() - started
        row = {
            "step": plan.steps_before + step + 1,
            **figures,
            "learning_rate": learning_rate(plan.optimizer, step, plan.steps),
            "grad_norm": norm,
            "skipped_updates": float(not math.isfinite(norm)),
        }
        # loss and norm of a skipped update are not finite
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def _add_gradient(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Add the gradient of a step's mean loss; return its figures, including `tokens`."""
        plan = self._plan
        scored_total = sum(sum(s.loss_mask[1:]) for s in sequences)
        loss_sum = 0.0
        tokens = 0
        for part in micro_batches(sequences, max_tokens=plan.micro_batch_tokens):
            batch = self._laid_out(part)
            with plan.hardware.precision():
                scores = score(self._model, batch.to(plan.hardware.device))
            loss = -scores.logprobs_N.sum() / scored_total
            loss.backward()
            loss_sum += float(loss.detach())
            tokens += sum(len(one.token_ids) for one in part)
        return {"loss": loss_sum, "tokens": tokens, "scored_tokens": scored_total}

    def _laid_out(self, sequences: Sequence[TrainingSequence]) -> Batch:
        """Return a tree where sequences have much in common, such as instructions; else rows."""
        if self._forwards_trees:
            tree = prefix_tree_of(sequences)
            if tree.num_tokens < _TREE_BELOW * sum(len(one.token_ids) for one in sequences):
                return tree
        return pack(sequences, row_tokens=self._plan.row_tokens, gap=self._gap)

    def _evaluate(self, step: int, row: dict[str, float]) -> None:
        if self._plan.dev_score is None:
            return
        copy_weights(self._model, self._sampled)
        row |= self._plan.dev_score().figures()
        if (
            row["dev_em"] >= self._best[0]
        ):  # the later of equally good weights, as in `LoopProgress.keep_best`
            best_step = self._plan.steps_before + step
            self._best = (row["dev_em"], best_step, whole_weights(self._model))

    def _resume(self) -> int:
        checkpoint = self._store.load()
        if checkpoint is None:
            return 0
        load_whole_weights(self._model, checkpoint.model)
        self._updater.optimizer.load_state_dict(checkpoint.optimizer)
        self._history = checkpoint.history
        extra = checkpoint.extra
        self._best = (extra["best_em"], extra["best_step"], extra["best_weights"])
        self._tokens, self._seconds = extra["tokens"], extra["seconds"]
        self._updater.skipped_in_a_row = extra["skipped_in_a_row"]
        restore_random_state(checkpoint.rng)
        return checkpoint.step

    def _save(self, step: int) -> None:
        best_em, best_step, best_weights = self._best
        self._store.save(
            Checkpoint(
                step=step,
                model=whole_weights(self._model),
                optimizer=self._updater.optimizer.state_dict(),
                history=self._history,
                extra={
                    "best_em": best_em,
                    "best_step": best_step,
                    "best_weights": best_weights,
                    "tokens": self._tokens,
                    "seconds": self._seconds,
                    "skipped_in_a_row": self._updater.skipped_in_a_row,
                },
            )
        )


class DevScore(NamedTuple):
    """The policy's results on the dev questions; checkpoints are chosen by `em`."""

    em: float
    """Share of all questions whose greedy answer is right, 0-1. A question without a verdict counts
    as wrong, so that no policy gains by losing the hard ones."""
    lost_episodes: int = 0
    """Number of episodes that stayed lost to infrastructure."""
    broke_sandbox_episodes: int = 0
    """Number of episodes in which a program of the policy ended its own sandbox."""
    canaries_right: float | None = None
    """Share of canaries that count as right, 0-1; None where none was asked."""

    def figures(self) -> dict[str, float]:
        """Return the columns of a history."""
        known = ((name, value) for name, value in self._asdict().items() if value is not None)
        return {f"dev_{name}": float(value) for name, value in known}


def dev_exact_match(roller: TrajectorySampler, tasks: Sequence[Task]) -> DevScore:
    """Score greedy decoding on dev `tasks`.

    This chooses checkpoints; held-out tasks never do.
    """
    trajectories = roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
    return DevScore(
        em=sum(t.is_right for t in trajectories) / max(1, len(trajectories)),
        lost_episodes=sum(t.is_lost for t in trajectories),
        broke_sandbox_episodes=sum(t.broke_sandbox for t in trajectories),
    )
