"""The loop on one page: draw tasks, roll out, score, admit, pack, update, publish weights."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play.phases import Phase, SelfPlay
from espalier.records import Tracker
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.rollout.engines.engine import KindChoice
from espalier.training.checkpoint import CheckpointStore
from espalier.training.distribution import ScoreRequest
from espalier.training.optimization import skipped_warning
from espalier.training.rl.admission import SamplesGroups, StepRollouts
from espalier.training.rl.agreement import complaint
from espalier.training.rl.assessment import Models
from espalier.training.rl.dense_scoring import Layout
from espalier.training.rl.material import learning_material
from espalier.training.rl.minibatch import Figures
from espalier.training.rl.perplexity import perplexities
from espalier.training.rl.progress import LAST_STEP, LoopProgress
from espalier.training.rl.publishing import Publisher
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.rows import dense_rows
from espalier.training.rl.step import Step
from espalier.training.rl.update import PolicyUpdate

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
"""Of every run; what an algorithm measures besides follows them."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loop is wired from."""

    models: Models
    layout: Layout
    sampler: SamplesGroups
    pool: TaskPool
    judge: Callable[[], float]
    """Dev EM of the model as it stands."""
    publisher: Publisher
    kind_choice: KindChoice | None = None
    """How the roller draws the kinds of actions."""
    self_play: SelfPlay | None = None
    """Widens the pool between two refreshes, where the profile asks for it."""


class RlLoop:
    """Trains the policy in place; ends with the weights that answered most dev questions."""

    def __init__(self, profile: Profile, parts: Parts, store: CheckpointStore) -> None:
        config, episode = profile.training, profile.episode
        self._profile = profile
        self._parts = parts
        self._directory = store.directory
        update = PolicyUpdate(
            parts.models,
            config,
            parts.layout,
            max_action_tokens=min(episode.max_tokens, episode.max_turns * episode.max_turn_tokens),
        )
        self._update = update
        self._replay = ReplayBuffer(
            config.replay,
            self._perplexities,
            compares_groups=config.algorithm.compares_groups,
        )
        self.seconds = 0.0
        """What this attempt took."""
        self.waited_s = 0.0
        """Of that, how long there was nothing to learn from: all of the sampling, or what of it
        did not overlap with learning."""
        self._progress = LoopProgress(
            parts.models.policy.model,
            update,
            parts.self_play or parts.pool,
            self._replay,
            store,
            parts.layout.processes,
        )

    @property
    def history(self) -> list[Figures]:
        """One row an optimizer step."""
        return self._progress.history

    @property
    def best_step(self) -> int:
        """Optimizer steps after which the kept weights were taken."""
        return self._progress.best_step

    @property
    def self_play(self) -> SelfPlay | None:
        """What was posed so far, where the profile asks for self-play."""
        return self._parts.self_play

    @property
    def last_step(self) -> list[Trajectory]:
        """Everything sampled in the newest step, also where an earlier attempt sampled it."""
        kept = self._directory / LAST_STEP
        return read_trajectories(kept) if kept.exists() else []

    def run(self, tracker: Tracker) -> None:
        """Train from the newest checkpoint, or from the start."""
        try:
            started = time.perf_counter()
            self._run(tracker)
            self.seconds = time.perf_counter() - started
        finally:
            self._parts.sampler.close()

    def _run(self, tracker: Tracker) -> None:
        config, progress = self._profile.training, self._progress
        start = progress.resume()
        self._parts.publisher.publish(start)
        if start == 0:
            progress.keep_best(0, self._judged())
        with tracker.progress("train", config.steps) as bar:
            bar.advance(start)
            for step in range(start, config.steps):
                if progress.is_idle(config):  # a resumed run had stopped already
                    break
                row = self._step(step)
                progress.history.append(row)
                is_last = step + 1 == config.steps or progress.is_idle(config)
                if (step + 1) % config.evaluate_every == 0 or is_last:
                    row["dev_em"] = self._judged()
                    progress.keep_best(step + 1, row["dev_em"])
                    progress.save(step + 1)
                if phase := self._phase_of(step + 1):
                    tracker.note(phase.line())
                if skipped := row.get("skipped_updates"):
                    tracker.note(skipped_warning(step + 1, skipped=int(skipped)))
                if warning := complaint(row, step=step + 1, limit=config.max_mismatch_kl):
                    tracker.note(warning)
                tracker.metrics(_told(row), step=step + 1)
                bar.advance(1, **_shown(row))
        if progress.is_idle(config):
            tracker.note(progress.idle_line(config))
        progress.take_best()
        self._parts.publisher.publish(progress.best_step)

    def _step(self, step: int) -> Figures:
        config = self._profile.training
        rng = random.Random(f"replay:{self._profile.seed}:{step}")
        replayed = self._replay.draw(config.tasks_per_step, rng)
        started = time.perf_counter()
        rollouts = self._parts.sampler.sample(step, groups=config.tasks_per_step - len(replayed))
        self.waited_s += time.perf_counter() - started
        material = learning_material([*rollouts.groups, *replayed], config.algorithm.material)
        figures: Figures = {}
        if material.groups:
            rows = dense_rows(material.groups, with_observations=config.train_on_observations)
            about = Step(step, self._request(step), self._parts.kind_choice)
            figures = self._update.apply(rows, material.units, about)
        idle_steps = self._progress.idle_steps(
            has_sampled=rollouts.groups_sampled > 0, has_credit=figures.get("credited_share", 0) > 0
        )
        self._parts.publisher.publish(step + 1)
        self._replay.add(rollouts.groups, version=step)
        is_last = step + 1 == config.steps or config.stops_after(idle_steps)
        figures |= self._widened(step, rollouts, is_last=is_last)
        if (step + 1) % self._profile.curriculum.refresh_every == 0:
            self._parts.pool.refresh()
        self._progress.sampled(rollouts.sampled)
        return self._row(step, rollouts) | figures | {"idle_steps": idle_steps}

    def _widened(self, step: int, rollouts: StepRollouts, *, is_last: bool) -> Figures:
        """Tasks posed after this step, where it ends a phase that another follows."""
        self_play, done = self._parts.self_play, step + 1
        if self_play is None:
            return {}
        self_play.observe(rollouts.sampled)
        if is_last or done % self._profile.curriculum.refresh_every:
            return {}
        phase = self_play.end_phase(done)
        return {"posed_tasks": phase.posed, "kept_posed_tasks": phase.kept}

    def _phase_of(self, done: int) -> Phase | None:
        """The phase that ended with `done` steps, if one did."""
        phases = self._parts.self_play.phases if self._parts.self_play else []
        return phases[-1] if phases and phases[-1].step == done else None

    def _row(self, step: int, rollouts: StepRollouts) -> Figures:
        sampled = rollouts.sampled
        count = max(1, len(sampled))
        return {
            "step": step + 1,
            "reward": sum(t.total_reward for t in sampled) / count,
            "pass_rate": sum(t.is_right for t in sampled) / count,
            "zero_variance_share": rollouts.zero_variance_share,
            "rollouts": self._progress.rollouts,
            "lost_episodes": rollouts.lost,
            "too_stale_groups": rollouts.too_stale,
            "action_tokens": sum(sum(t.action_mask) for t in sampled) / count,
            "kept_tasks": self._parts.pool.num_kept,
            "tool_calls": sum(len(t.tool_results) for t in sampled) / count,
            "temperature": self._profile.training.temperature_at(step),
        }

    def _request(self, step: int) -> ScoreRequest:
        config = self._profile.training
        return ScoreRequest(
            temperature=config.temperature_at(step),
            top_p=self._profile.rollout.exploration.top_p,
            top_k=self._profile.rollout.exploration.top_k,
            entropy=True,
            entropy_gradient=config.algorithm.entropy_coefficient > 0,
        )

    def _judged(self) -> float:
        processes = self._parts.layout.processes
        return processes.of_first(self._parts.judge() if processes.is_first else 0.0)

    def _perplexities(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return perplexities(
            trajectories, self._parts.models.policy, self._parts.layout, ScoreRequest()
        )


def _told(row: Figures) -> Figures:
    """All figures but the step, those that every run has in front."""
    return {name: row[name] for name in (*HISTORY_COLUMNS, *row) if name in row and name != "step"}


def _shown(row: Figures) -> Figures:
    names = ("reward", "pass_rate", "zero_variance_share", "clipped_share", "entropy", "dev_em")
    return {name: row[name] for name in names if name in row}
