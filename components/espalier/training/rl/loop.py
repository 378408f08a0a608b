"""The loop on one page: draw tasks, roll out, score, admit, pack, update, publish weights."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from espalier.config import Profile
from espalier.curriculum.pool import TaskPool
from espalier.curriculum.self_play import Phase, SelfPlay
from espalier.dialects import unread_call
from espalier.dialects.dialect import Dialect
from espalier.records import CompositeTracker, Tracker
from espalier.records.step_figures import UNKNOWN_TOOL, UNREAD_CALLS
from espalier.records.trajectory import FinishReason, Trajectory
from espalier.rollout.engines.engine import KindChoice
from espalier.training.attempt_figures import attempt_figures
from espalier.training.checkpoint import CheckpointStore
from espalier.training.health import HealthMonitor, Responder, new_detectors
from espalier.training.optimization import skipped_warning
from espalier.training.rl.assessment import (
    StepContext,
    mismatch_warning,
    start_warning,
)
from espalier.training.rl.controls import LoopControls
from espalier.training.rl.ledger import Outcome
from espalier.training.rl.models import Layout, Models, perplexities
from espalier.training.rl.policy_gradient import Figures
from espalier.training.rl.progress import Drawing, LoopProgress
from espalier.training.rl.publishing import Publisher
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.rows import Group, Rows, Unit, dense_rows, learning_batch
from espalier.training.rl.sampling import StepRollouts, StepSampler, draws_of
from espalier.training.rl.step_streams import LineTracker, NullStreams
from espalier.training.rl.update import PolicyUpdate, UpdateTensors
from espalier.training.scoring import ScoreRequest
from espalier.training.supervised import DevScore

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
"""Columns of every run; further figures follow them. `STEP_FIGURES` says what each is."""


@dataclass(slots=True, kw_only=True)
class LoopParts:
    """The objects that the loop drives."""

    models: Models
    layout: Layout
    sampler: StepSampler
    pool: TaskPool
    dev_score: Callable[[], DevScore]
    """Scores the current weights."""
    publisher: Publisher
    kind_choice: KindChoice | None = None
    """The rollers' exploration of action kinds."""
    reward_figures: Callable[[], Figures] = dict
    """Agreement and cost so far of the models that grade attempts."""
    dialect: Dialect | None = None
    """The policy's, with the tools that it may call; None if its messages are not looked into."""
    self_play: SelfPlay | None = None
    """Adds tasks to the pool between two refreshes; None where the profile has none."""
    streams: NullStreams = field(default_factory=NullStreams)
    """Takes every attempt and figure."""


class Updating(NamedTuple):
    """The work of updating policy and critic, scoring included."""

    seconds: float = 0.0
    tokens: float = 0.0
    positions: float = 0.0
    """Positions of the policy's passes, as `Forwarded` counts them."""

    def since(self, before: Updating) -> Updating:
        """Return the work done since `before`."""
        now = zip(self, before, strict=True)
        return Updating(*(after - earlier for after, earlier in now))

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second; 0 without updates."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def positions_per_s(self) -> float:
        """Positions per second; 0 without updates."""
        return self.positions / self.seconds if self.seconds else 0.0


class _Moment(NamedTuple):
    """The clock and the counters before a step."""

    clock_s: float
    waited_s: float
    rollouts: int
    updating: Updating


_IDLE_SHARE = 0.97
"""Share of a step's groups with equal rewards (for groups of one: of right ones) from which it
counts as without credit: even of tasks known by heart, one in a few hundred is missed now and
then."""


class RlLoop:
    """Trains the policy in place; ends with the latest weights of the highest dev EM."""

    def __init__(self, profile: Profile, parts: LoopParts, store: CheckpointStore) -> None:
        config, episode = profile.training, profile.episode
        self._profile = profile
        self.parts = parts
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
        self._health = HealthMonitor(new_detectors(config), time.time)
        self.seconds = 0.0
        """Duration of `run`, since the last resume."""
        self.waited_s = 0.0
        """The part of `seconds` in which the learner waited for trajectories."""
        self.updating = Updating()
        """The work of this run's updates, since the last resume."""
        self.progress = LoopProgress(
            parts.models.policy.model,
            update,
            Drawing(parts.self_play or parts.pool, parts.sampler.ledger),
            self._replay,
            store,
            parts.layout.processes,
        )
        controls = LoopControls(update, parts.pool, self.progress, parts.publisher, parts.sampler)
        acts = config.health.response == "act"
        self._responder = Responder(self._health, controls) if acts else None

    def run(self, tracker: Tracker) -> None:
        """Train from the newest checkpoint, or from the start."""
        try:
            started = time.perf_counter()
            self._run(tracker)
            self.seconds = time.perf_counter() - started
        finally:
            self.parts.sampler.close()

    def _run(self, tracker: Tracker) -> None:
        config, progress = self._profile.training, self.progress
        start, streams = self._resume(), self.parts.streams
        streams.begin(progress.history)
        # what the detectors find has records of its own there
        log = CompositeTracker(tracker, LineTracker(streams))
        with tracker.progress("train", config.steps) as bar:
            bar.advance(start)
            for step in range(start, config.steps):
                # the run had already stopped when its checkpoint was written
                if progress.is_idle(config) or self._stopped:
                    break
                before = _Moment(
                    time.perf_counter(), self.waited_s, progress.rollouts, self.updating
                )
                row = self._step(step)
                progress.history.append(row)
                is_last = step + 1 == config.steps or progress.is_idle(config)
                is_judged = (step + 1) % config.evaluate_every == 0 or is_last
                if is_judged:
                    row |= self._dev_score().figures()
                    progress.keep_best(step + 1, row["dev_em"])
                # before the checkpoint: a run killed between the two would miss them
                self._tell(row, log)
                self._watch(row, tracker)
                if is_judged or self._stopped:
                    streams.finish_segments()
                    progress.save(step + 1)
                timings = self._timings(row, before)
                streams.add_step(row, timings)
                tracker.metrics(_tracker_metrics(row) | timings, step=step + 1)
                bar.advance(1, **_progress_figures(row))
        if progress.is_idle(config):
            log.note(progress.idle_line(config))
        if self._stopped:
            log.note(f"stopped after step {len(progress.history)}: {self._stopped}")
        self.parts.sampler.ledger.end()
        streams.finish_segments()
        progress.take_best()
        self.parts.publisher.publish(progress.best_step)

    def _resume(self) -> int:
        """Restore the newest checkpoint, if there is one; returns the number of steps done."""
        progress = self.progress
        start = progress.resume()
        self._health.begin(progress.start_dev_em)
        self._health.replay(progress.history)
        if self._responder is not None and progress.health_state is not None:
            self._responder.restore(progress.health_state)
        self.parts.publisher.publish(start)
        if start == 0:
            progress.begin(self._dev_score().em)
            self._health.begin(progress.start_dev_em)
        return start

    def _tell(self, row: Figures, tracker: Tracker) -> None:
        """Log what is notable of the newest step."""
        config, step = self._profile.training, int(row["step"])
        if phase := self._phase_of(step):
            tracker.note(phase.line())
        if skipped := row.get("skipped_updates"):
            tracker.note(skipped_warning(step, skipped=int(skipped)))
        if warning := mismatch_warning(row, step=step, limit=config.max_mismatch_kl):
            tracker.note(warning)
        if warning := start_warning(self.progress.history, offers_tools=self._offers_tools):
            tracker.note(warning)

    def _watch(self, row: Figures, tracker: Tracker) -> None:
        """Log and keep what the detectors notice in the newest step, and answer it."""
        step, sampled = int(row["step"]), self.progress.newest_attempts
        if self._responder is not None:
            # rank 0 alone has the figures of judges: all ranks answer what it sees
            row = self.parts.layout.processes.broadcast(row)
        notices = self._health.observe(row, sampled)
        if self._responder is not None:
            notices += self._responder.respond(step, notices, sampled)
            self.progress.health_state = self._responder.state()
        self.parts.streams.add_notices(notices)
        for notice in notices:
            tracker.note(notice.line())

    @property
    def _stopped(self) -> str:
        """Why a response to a notice ended the run; empty while none has."""
        return self._responder.stopped if self._responder is not None else ""

    def _timings(self, row: Figures, before: _Moment) -> Figures:
        """Return the figures that differ from run to run: for trackers, never for the history."""
        step_s = time.perf_counter() - before.clock_s
        sampled = row["action_tokens"] * (self.progress.rollouts - before.rollouts)
        timings = {
            "step_s": step_s,
            "rollout_s": self.waited_s - before.waited_s,
            "tokens_per_s": sampled / step_s,
        }
        updated = self.updating.since(before.updating)
        timings["update_s"] = updated.seconds
        if updated.tokens:
            timings["update_tokens_per_s"] = updated.tokens_per_s
        if saved := self.progress.saved_step:
            timings["checkpoint_step"] = saved
        return timings

    def _step(self, step: int) -> Figures:
        config = self._profile.training
        rng = random.Random(f"replay:{self._profile.seed}:{step}")
        left_out = self.parts.sampler.left_out
        replayed = [
            group
            for group in self._replay.draw(config.tasks_per_step, rng)
            if not any(left_out & one.reward.keys() for one in group.trajectories)
        ]
        self.parts.sampler.ledger.step = self.parts.layout.processes.step = step + 1
        started = time.perf_counter()
        rollouts = self.parts.sampler.sample(step, groups=config.tasks_per_step - len(replayed))
        self.waited_s += time.perf_counter() - started
        batch = learning_batch([*rollouts.groups, *replayed], config.algorithm.material)
        figures: Figures = {}
        update: UpdateTensors | None = None
        if batch.groups:
            rows = dense_rows(batch.groups, with_observations=config.train_on_observations)
            context = StepContext(step, self._request(step), self.parts.kind_choice)
            figures = self._updated(rows, batch.units, context)
            update = self._update.newest
        self.parts.streams.add_episodes(step + 1, rollouts.sampled, batch.groups, update)
        is_skipped = bool(figures.get("skipped_step"))
        self._settle(rollouts.groups, () if is_skipped else batch.groups)
        idle_steps = self.progress.idle_steps(
            has_sampled=rollouts.groups_sampled > 0,
            has_credit=figures.get("credited_share", 0) > 0
            and rollouts.zero_variance_share < _IDLE_SHARE,
        )
        self.parts.publisher.publish(step + 1)
        self._replay.add(() if is_skipped else rollouts.groups, version=step)
        is_last = step + 1 == config.steps or config.stops_after(idle_steps)
        figures |= self._end_self_play_phase(step, rollouts, is_last=is_last)
        if (step + 1) % self._profile.curriculum.refresh_every == 0:
            self.parts.pool.refresh()
        self.progress.sampled(rollouts.sampled)
        return self._history_row(step, rollouts) | figures | {"idle_steps": idle_steps}

    def _updated(self, rows: Rows, units: Sequence[Unit], context: StepContext) -> Figures:
        started = time.perf_counter()
        figures = self._update.apply(rows, units, context)
        seconds, tokens, positions = self.updating
        self.updating = Updating(
            seconds + time.perf_counter() - started,
            tokens + figures["update_tokens"],
            positions + figures["update_positions"],
        )
        return figures

    def _settle(self, admitted: Sequence[Group], learned: Sequence[Group]) -> None:
        """Record in the ledger which of the admitted groups the step has learned from."""
        ledger, own = self.parts.sampler.ledger, set(draws_of(admitted))
        trained = own.intersection(draws_of(learned))
        ledger.settle(sorted(trained), Outcome.TRAINED)
        ledger.settle(sorted(own - trained), Outcome.NO_MATERIAL)

    def _end_self_play_phase(self, step: int, rollouts: StepRollouts, *, is_last: bool) -> Figures:
        """Add self-play's tasks to the pool, if this step ends a phase and is not the last."""
        self_play, done = self.parts.self_play, step + 1
        if self_play is None:
            return {}
        self_play.observe(rollouts.sampled)
        if is_last or done % self._profile.curriculum.refresh_every:
            return {}
        phase = self_play.end_phase(done)
        return {"posed_tasks": phase.posed, "kept_posed_tasks": phase.kept}

    def _phase_of(self, done: int) -> Phase | None:
        """Return the phase that ended after `done` steps, if one did."""
        phases = self.parts.self_play.phases if self.parts.self_play else []
        return phases[-1] if phases and phases[-1].step == done else None

    def _history_row(self, step: int, rollouts: StepRollouts) -> Figures:
        sampled = rollouts.sampled
        count = max(1, len(sampled))
        return {
            "step": step + 1,
            "reward": sum(t.total_reward for t in sampled) / count,
            "pass_rate": sum(t.is_right for t in sampled) / count,
            "zero_variance_share": rollouts.zero_variance_share,
            "equal_outcomes_share": rollouts.equal_outcomes_share,
            "rollouts": self.progress.rollouts,
            "informative_share": rollouts.informative / count,
            "lost_episodes": rollouts.lost,
            "broke_sandbox_episodes": sum(t.broke_sandbox for t in sampled),
            "action_tokens": sum(sum(t.action_mask) for t in sampled) / count,
            "kept_tasks": self.parts.pool.num_kept,
            "tool_calls": sum(len(t.tool_results) for t in sampled) / count,
            "temperature": self._profile.training.temperature_at(step),
            **_mean_terms(sampled),
            **_unread_calls(sampled, self.parts.dialect),
            **attempt_figures(sampled, offers_tools=self._offers_tools),
            **self.parts.reward_figures(),
        }

    @property
    def _offers_tools(self) -> bool:
        return self.parts.dialect is not None and bool(self.parts.dialect.tools)

    def _request(self, step: int) -> ScoreRequest:
        config = self._profile.training
        return ScoreRequest(
            temperature=config.temperature_at(step),
            top_p=self._profile.rollout.exploration.top_p,
            top_k=self._profile.rollout.exploration.top_k,
            entropy=True,
            entropy_gradient=self._update.entropy_coefficient > 0,
        )

    def _dev_score(self) -> DevScore:
        processes = self.parts.layout.processes
        own = self.parts.dev_score() if processes.is_first else DevScore(0.0)
        return processes.broadcast(own)

    def _perplexities(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return perplexities(
            trajectories, self.parts.models.policy, self.parts.layout, ScoreRequest()
        )


def _mean_terms(sampled: Sequence[Trajectory]) -> Figures:
    """Return `reward/NAME`: the mean of each term over the trajectories that have it."""
    names = sorted({name for trajectory in sampled for name in trajectory.reward})
    return {
        f"reward/{name}": fmean(t.reward[name] for t in sampled if name in t.reward)
        for name in names
    }


def _unread_calls(sampled: Sequence[Trajectory], dialect: Dialect | None) -> Figures:
    """Return `unread_calls/WHY`: the share of the trajectories with such a call, if any has one."""
    if dialect is None:
        return {}
    found: Counter[str] = Counter()
    for trajectory in sampled:
        found[UNKNOWN_TOOL] += any(not result.exists for result in trajectory.tool_results)
        last = trajectory.messages[-1] if trajectory.messages else None
        is_malformed = trajectory.finish_reason is FinishReason.PARSE_ERROR
        if last is None or last.role != "assistant" or last.tool_calls:
            continue
        if is_malformed or trajectory.finish_reason is FinishReason.ANSWERED:
            syntax, tools = dialect.syntax, dialect.tools
            found[unread_call(last, tools, syntax, is_malformed=is_malformed) or ""] += 1
    return {
        f"{UNREAD_CALLS}/{why}": found[why] / len(sampled)
        for why in sorted(found)
        if why and found[why]
    }


def _tracker_metrics(row: Figures) -> Figures:
    return {name: row[name] for name in (*HISTORY_COLUMNS, *row) if name in row and name != "step"}


def _progress_figures(row: Figures) -> Figures:
    names = ("reward", "pass_rate", "zero_variance_share", "clipped_share", "entropy", "dev_em")
    return {name: row[name] for name in names if name in row}
