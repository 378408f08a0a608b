"""The GRPO loop on one page: draw tasks, roll out, score, admit, pack, update, publish weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel

from espalier.artifacts import Tracker
from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.rollout.roller import Roller
from espalier.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.training.checkpoint import Checkpoint, CheckpointStore, cloned_weights
from espalier.training.grpo.sampling import GroupSampler, StepRollouts
from espalier.training.grpo.update import PolicyUpdate, UpdateFigures

_LAST_STEP = "last_step.parquet"

HISTORY_COLUMNS = (
    "step",
    "reward",
    "pass_rate",
    "zero_variance_share",
    "clipped_share",
    "entropy",
    "grad_norm",
    "mismatch_kl",
    "loss",
    "rollouts",
    "action_tokens",
    "kept_tasks",
    "tool_calls",
    "dev_em",
)


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loop is wired from."""

    model: PreTrainedModel
    reference: PreTrainedModel | None
    roller: Roller
    pool: TaskPool
    judge: Callable[[], float]
    """Dev EM of the model as it stands."""


class GrpoLoop:
    """Trains `parts.model` in place; ends with the weights that answered most dev questions."""

    def __init__(self, profile: Profile, parts: Parts, store: CheckpointStore) -> None:
        config = profile.training
        self._profile = profile
        self._parts = parts
        self._store = store
        self._sampler = GroupSampler(parts.roller, parts.pool, config, seed=profile.seed)
        self._update = PolicyUpdate(
            parts.model, parts.reference, config, row_tokens=profile.episode.max_tokens
        )
        self.history: list[dict[str, float]] = []
        self._last_step: list[Trajectory] = []
        self._best = (-1.0, 0, cloned_weights(parts.model))
        self._rollouts = 0

    @property
    def last_step(self) -> list[Trajectory]:
        """Everything sampled in the newest step, also where an earlier attempt sampled it."""
        kept = self._store.directory / _LAST_STEP
        return read_trajectories(kept) if kept.exists() else []

    @property
    def best_step(self) -> int:
        """Optimizer steps after which the kept weights were taken."""
        return self._best[1]

    def run(self, tracker: Tracker) -> None:
        """Train from the newest checkpoint, or from the start."""
        config = self._profile.training
        start = self._resume()
        if start == 0:
            self._keep_best(0, self._parts.judge())
        with tracker.progress("train", config.steps) as progress:
            progress.advance(start)
            for step in range(start, config.steps):
                row = self._step(step)
                if (step + 1) % config.evaluate_every == 0 or step + 1 == config.steps:
                    row["dev_em"] = self._parts.judge()
                    self._keep_best(step + 1, row["dev_em"])
                    self.history.append(row)
                    self._save(step + 1)
                else:
                    self.history.append(row)
                tracker.metrics({k: v for k, v in row.items() if k != "step"}, step=step + 1)
                progress.advance(1, **_shown(row))
        self._parts.model.load_state_dict(self._best[2])

    def _step(self, step: int) -> dict[str, float]:
        rollouts = self._sampler.sample(step)
        self._rollouts += len(rollouts.sampled)
        figures = UpdateFigures()
        if rollouts.groups:
            figures = self._update.apply(rollouts.groups, step)
        self._parts.roller.policy_version = step + 1
        self._last_step = rollouts.sampled
        if (step + 1) % self._profile.curriculum.refresh_every == 0:
            self._parts.pool.refresh()
        return self._row(step, rollouts, figures)

    def _row(self, step: int, rollouts: StepRollouts, figures: UpdateFigures) -> dict[str, float]:
        sampled = rollouts.sampled
        count = len(sampled)
        return {
            "step": step + 1,
            "reward": sum(t.total_reward for t in sampled) / count,
            "pass_rate": sum(t.reward["outcome"] > 0 for t in sampled) / count,
            "zero_variance_share": rollouts.zero_variance_share,
            "clipped_share": figures.clipped_share,
            "entropy": figures.entropy,
            "grad_norm": figures.grad_norm,
            "mismatch_kl": figures.mismatch_kl,
            "loss": figures.loss,
            "rollouts": self._rollouts,
            "action_tokens": sum(sum(t.action_mask) for t in sampled) / count,
            "kept_tasks": self._parts.pool.num_kept,
            "tool_calls": sum(len(t.tool_calls) for t in sampled) / count,
        }

    def _keep_best(self, step: int, dev_em: float) -> None:
        if dev_em > self._best[0]:
            self._best = (dev_em, step, cloned_weights(self._parts.model))

    def _save(self, step: int) -> None:
        # beside the checkpoint: a kill after the last step must not lose its trajectories
        write_trajectories(self._store.directory / _LAST_STEP, self._last_step)
        best_em, best_step, best_weights = self._best
        self._store.save(
            Checkpoint(
                step=step,
                model=self._parts.model.state_dict(),
                optimizer=self._update.updater.optimizer.state_dict(),
                history=self.history,
                extra={
                    "best_em": best_em,
                    "best_step": best_step,
                    "best_weights": best_weights,
                    "rollouts": self._rollouts,
                    "pool": self._parts.pool.state(),
                    "kept": self._parts.pool.kept_ids(),
                },
            )
        )

    def _resume(self) -> int:
        checkpoint = self._store.load()
        if checkpoint is None:
            return 0
        extra = checkpoint.extra
        self._parts.model.load_state_dict(checkpoint.model)
        self._update.updater.optimizer.load_state_dict(checkpoint.optimizer)
        self.history = checkpoint.history
        self._best = (extra["best_em"], extra["best_step"], extra["best_weights"])
        self._rollouts = extra["rollouts"]
        self._parts.pool.restore(extra["pool"], extra["kept"])
        self._parts.roller.policy_version = checkpoint.step
        return checkpoint.step


def _shown(row: dict[str, float]) -> dict[str, float]:
    names = ("reward", "pass_rate", "zero_variance_share", "clipped_share", "entropy", "dev_em")
    return {name: row[name] for name in names if name in row}
