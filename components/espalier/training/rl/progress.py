"""How far a run is: its history, the best weights so far, and the checkpoint that holds both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from espalier.records.trajectory import Trajectory, write_trajectories
from espalier.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    restore_random_state,
)
from espalier.training.parallel import Processes
from espalier.training.rl.minibatch import Figures
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.update import PolicyUpdate
from espalier.training.sharding import load_whole_weights, whole_weights

LAST_STEP = "last_step.parquet"


class KeepsTasks(Protocol):
    """What a checkpoint needs of the pool, or of the self-play that widens it."""

    def state(self) -> dict[str, Any]:
        """Everything that `restore` takes, as plain data."""
        ...

    def kept_ids(self) -> list[str]:
        """Ids of the tasks inside the band."""
        ...

    def restore(self, state: dict[str, Any], kept: Sequence[str]) -> None:
        """Continue from a checkpoint."""
        ...


class LoopProgress:
    """Everything that changes while a loop runs, from the models to the counters."""

    def __init__(
        self,
        policy: nn.Module,
        update: PolicyUpdate,
        pool: KeepsTasks,
        replay: ReplayBuffer,
        store: CheckpointStore,
        processes: Processes,
    ) -> None:
        self.history: list[Figures] = []
        self.rollouts = 0
        self._policy = policy
        self._update = update
        self._pool = pool
        self._replay = replay
        self._store = store
        self._processes = processes
        self._best = (-1.0, 0, whole_weights(policy))
        self._last_step: Sequence[Trajectory] = ()

    @property
    def best_step(self) -> int:
        """Optimizer steps after which the kept weights were taken."""
        return self._best[1]

    def sampled(self, trajectories: Sequence[Trajectory]) -> None:
        """Take note of all that a step has sampled."""
        self._last_step = trajectories
        self.rollouts += len(trajectories)

    def keep_best(self, step: int, dev_em: float) -> None:
        """Keep the weights of `step` if none before answered as many dev questions."""
        if dev_em > self._best[0]:
            self._best = (dev_em, step, whole_weights(self._policy))

    def take_best(self) -> None:
        """Put the kept weights into the policy."""
        load_whole_weights(self._policy, self._best[2])

    def save(self, step: int) -> None:
        """Replace the checkpoint, after `step` steps are done; the first process writes it."""
        weights, state = whole_weights(self._policy), self._update.state()
        if not self._processes.is_first:
            return
        # beside the checkpoint: a kill after the last step must not lose its trajectories
        write_trajectories(self._store.directory / LAST_STEP, self._last_step)
        # under a name of its own, so that a kill in between leaves the former pair whole
        buffer = self._store.directory / f"replay-{step}.parquet"
        best_em, best_step, best_weights = self._best
        self._store.save(
            Checkpoint(
                step=step,
                model=weights,
                optimizer=state.pop("optimizer"),
                history=self.history,
                extra={
                    "best_em": best_em,
                    "best_step": best_step,
                    "best_weights": best_weights,
                    "rollouts": self.rollouts,
                    "pool": self._pool.state(),
                    "kept": self._pool.kept_ids(),
                    "update": state,
                    "replay": (buffer.name, self._replay.save(buffer)),
                },
            )
        )
        for former in self._store.directory.glob("replay-*.parquet"):
            if former != buffer:
                former.unlink()

    def resume(self) -> int:
        """Take the newest checkpoint back; returns the steps that are done."""
        checkpoint = self._store.load()
        if checkpoint is None:
            return 0
        extra = checkpoint.extra
        load_whole_weights(self._policy, checkpoint.model)
        self._update.restore({**extra["update"], "optimizer": checkpoint.optimizer})
        self.history = checkpoint.history
        self._best = (extra["best_em"], extra["best_step"], extra["best_weights"])
        self.rollouts = extra["rollouts"]
        self._pool.restore(extra["pool"], extra["kept"])
        name, layout = extra["replay"]
        self._replay.restore(self._store.directory / name, layout)
        restore_random_state(checkpoint.rng)
        return checkpoint.step
