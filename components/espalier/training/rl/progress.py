"""Progress of a run: its history, the best weights so far, and the checkpoint that holds both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from espalier.config import TrainingConfig
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import SelfPlay
from espalier.records import whole_file
from espalier.records.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    restore_random_state,
)
from espalier.training.parallel import Processes, load_whole_weights, whole_weights
from espalier.training.rl.ledger import PromptLedger
from espalier.training.rl.policy_gradient import Figures
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.update import PolicyUpdate

_LAST_STEP = "last_step.parquet"


class Drawing(NamedTuple):
    """The source of prompts, and the ledger of their outcomes."""

    pool: TaskPool | SelfPlay
    ledger: PromptLedger


class LoopProgress:
    """State of a loop that a checkpoint keeps, from the models to the counters."""

    def __init__(
        self,
        policy: nn.Module,
        update: PolicyUpdate,
        drawing: Drawing,
        replay: ReplayBuffer,
        store: CheckpointStore,
        processes: Processes,
    ) -> None:
        self.history: list[Figures] = []
        self.rollouts = 0
        self.saved_step = 0
        """Number of steps in the newest checkpoint of this process; 0 before the first."""
        self.start_dev_em: float | None = None
        """Dev EM of the weights that training began with; None before they are judged."""
        self._policy = policy
        self._update = update
        self._pool, self._ledger = drawing
        self._replay = replay
        self._store = store
        self._processes = processes
        self.health_state: dict[str, Any] | None = None
        """State of the responses to notices, where the profile has them."""
        self._best = (-1.0, 0, whole_weights(policy))
        self._last_step: Sequence[Trajectory] = ()

    @property
    def best_step(self) -> int:
        """Number of optimizer steps after which the kept weights were taken."""
        return self._best[1]

    @property
    def newest_attempts(self) -> Sequence[Trajectory]:
        """Scored trajectories of the newest step; () after a resume, until the next."""
        return self._last_step

    @property
    def last_step(self) -> list[Trajectory]:
        """All trajectories of the newest saved step, also if it was sampled before a resume."""
        kept = self._store.directory / _LAST_STEP
        return read_trajectories(kept) if kept.exists() else []

    def sampled(self, trajectories: Sequence[Trajectory]) -> None:
        """Count the trajectories of a step, and keep them until the next."""
        self._last_step = trajectories
        self.rollouts += len(trajectories)

    def idle_steps(self, *, has_sampled: bool, has_credit: bool) -> int:
        """Return how many steps in a row, up to the current one, gave no credit.

        A step that sampled nothing (lost environments) shows nothing about the tasks and does not
        count. All processes use the first one's number, so they stop together.
        """
        before = int(self.history[-1].get("idle_steps", 0)) if self.history else 0
        return self._processes.broadcast(0 if has_credit else before + has_sampled)

    def is_idle(self, config: TrainingConfig) -> bool:
        """Return whether too many steps in a row gave no credit (`stop_after_idle_steps`)."""
        return bool(self.history) and config.stops_after(self.history[-1].get("idle_steps", 0))

    def idle_line(self, config: TrainingConfig) -> str:
        """Return a log line on why an idle run has stopped, and what would let it learn further."""
        # a row without action tokens sampled nothing
        sampled = [row for row in self.history if row["action_tokens"]]
        idle = sampled[-config.stop_after_idle_steps :]
        pass_rate = sum(row["pass_rate"] for row in idle) / len(idle)
        equal_share = sum(row["zero_variance_share"] for row in idle) / len(idle)
        none = not any(row.get("credited_share", 0) for row in idle)
        whose = "no trajectory" if none else "hardly any trajectory"
        if pass_rate <= 0.1:
            remedy = "the tasks are out of reach: add easier ones, or lengthen the warm start"
        elif pass_rate < 0.9:
            remedy = "each task is always solved or never: add tasks in between"
        else:
            remedy = "the tasks are mastered: add harder ones"
        return (
            f"stopped after step {len(self.history)} of {config.steps}: {whose} got credit "
            f"in {len(idle)} steps in a row (training.stop_after_idle_steps="
            f"{config.stop_after_idle_steps}; pass rate {pass_rate:.0%}, {equal_share:.0%} of the "
            f"groups with equal rewards), {remedy}; the best weights, of step {self.best_step}, "
            "are kept"
        )

    def begin(self, dev_em: float) -> None:
        """Keep the weights that training begins with, and their dev EM."""
        self.start_dev_em = dev_em
        self.keep_best(0, dev_em)

    def keep_best(self, step: int, dev_em: float) -> None:
        """Keep the weights of `step` if no earlier ones have a higher dev EM.

        The later of equally good weights is kept: training mostly helps, and a few hundred
        questions do not show by how much. In simulated runs no other rule was better where weights
        differ between evaluations (`tests.benchmarks.kept_step`), and this rule needs only one
        copy of the weights.
        """
        if dev_em >= self._best[0]:
            self._best = (dev_em, step, whole_weights(self._policy))

    def take_best(self) -> None:
        """Load the best weights into the policy."""
        load_whole_weights(self._policy, self._best[2])

    def save(self, step: int) -> None:
        """Replace the checkpoint after `step` steps; the first process writes it."""
        weights, state = whole_weights(self._policy), self._update.state()
        if not self._processes.is_first:
            return
        # beside the checkpoint: a run killed after its last step must not lose the trajectories;
        # by a rename: a copy of the folder made meanwhile has the former file or this one
        with whole_file(self._store.directory / _LAST_STEP) as draft:
            write_trajectories(draft, self._last_step)
        # a new name: a run killed between the two writes keeps the former buffer and checkpoint
        buffer = self._store.directory / f"replay-{step}.parquet"
        best_em, best_step, best_weights = self._best
        self._store.save(
            Checkpoint(
                step=step,
                model=weights,
                optimizer=state.pop("optimizer"),
                history=self.history,
                extra={
                    "start_dev_em": self.start_dev_em,
                    "best_em": best_em,
                    "best_step": best_step,
                    "best_weights": best_weights,
                    "rollouts": self.rollouts,
                    "pool": self._pool.state(),
                    "kept": self._pool.kept_ids(),
                    "update": state,
                    "replay": (buffer.name, self._replay.save(buffer)),
                    "ledger": self._ledger.state(),
                    "health": self.health_state,
                },
            )
        )
        self._ledger.saved()
        self.saved_step = step
        for former in self._store.directory.glob("replay-*.parquet"):
            if former != buffer:
                former.unlink()

    def resume(self) -> int:
        """Restore the newest checkpoint; returns the number of steps done."""
        checkpoint = self._store.load()
        if checkpoint is None:
            self._ledger.restore(None, step=0)
            return 0
        extra = checkpoint.extra
        self._ledger.restore(extra["ledger"], step=checkpoint.step)
        load_whole_weights(self._policy, checkpoint.model)
        self._update.restore({**extra["update"], "optimizer": checkpoint.optimizer})
        self.history = checkpoint.history
        self._best = (extra["best_em"], extra["best_step"], extra["best_weights"])
        self.start_dev_em = extra["start_dev_em"]
        self.rollouts = extra["rollouts"]
        self.health_state = extra.get("health")  # a checkpoint of an earlier version has none
        self._pool.restore(extra["pool"], extra["kept"])
        name, layout = extra["replay"]
        self._replay.restore(self._store.directory / name, layout)
        restore_random_state(checkpoint.rng)
        return checkpoint.step
