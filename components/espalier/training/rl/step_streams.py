"""Streams of a training: every sampled attempt, every step's figures, and what the log noted.

Nothing that training does depends on them: they are outside of the artifact's `content`, and a run
with a folder of streams and one without train the same weights.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from espalier.config import StreamsConfig
from espalier.records import NullTracker
from espalier.records.episodes import EPISODES, EpisodePlace, UpdateView, episode_record
from espalier.records.notices import NOTICES, Notice
from espalier.records.streams import StreamRecord, StreamWriter
from espalier.records.trajectory import Trajectory
from espalier.training.rl.rows import Group
from espalier.training.rl.update import UpdateTensors

STEPS = "steps"
"""Name of the stream of the steps' figures."""


class NullStreams:
    """Streams of a process that writes none: all ranks but the first."""

    def begin(self, history: Sequence[Mapping[str, float]]) -> None:
        """Ignore."""

    def add_episodes(
        self,
        step: int,
        sampled: Sequence[Trajectory],
        learned: Sequence[Group],
        update: UpdateTensors | None,
    ) -> None:
        """Ignore."""

    def add_step(self, row: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Ignore."""

    def add_notices(self, notices: Sequence[Notice]) -> None:
        """Ignore."""

    def add_line(self, text: str, *, level: str = "note") -> None:
        """Ignore."""

    def finish_segments(self) -> None:
        """Ignore."""


class StepStreams(NullStreams):
    """Writes the streams of one training, in the process that keeps its checkpoints."""

    def __init__(
        self,
        folder: Path,
        kept: StreamsConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set where to write.

        Args:
            folder: the folder of the streams.
            kept: what to keep of attempts; None keeps all.
            clock: gives seconds since 1970.
        """
        self._clock, self._kept = clock, kept or StreamsConfig()
        self._episodes, self._steps, self._notices = (
            StreamWriter(folder, name) for name in (EPISODES, STEPS, NOTICES)
        )
        self._step = 0
        self._unkept_groups: dict[str, list[StreamRecord]] = {}
        """Task -> records of its attempts in the newest step, for groups that are not kept."""

    def begin(self, history: Sequence[Mapping[str, float]]) -> None:
        """Drop what was written after the checkpoint, and add steps of it that are missing.

        Args:
            history: figures of the steps up to the checkpoint.
        """
        done = len(history)
        self._episodes.keep_until(done)
        self._notices.keep_until(done)
        known = max(0, self._steps.keep_until(done))
        self._steps.append([_step_record(row, {}, None) for row in history[known:]])
        self._step = done
        if done:
            self.add_line(f"resumed after step {done}", level="restart")

    def add_episodes(
        self,
        step: int,
        sampled: Sequence[Trajectory],
        learned: Sequence[Group],
        update: UpdateTensors | None,
    ) -> None:
        """Write the attempts of a step, or those of some of its groups.

        Args:
            step: the step that sampled them, counted from 1.
            sampled: all scored attempts.
            learned: groups that the step has learned from, replayed ones included.
            update: tensors of its rows, in the order of `learned`; None if it learned nothing.
        """
        self._step, self._unkept_groups = step, {}
        rows: dict[int, int] = {}
        for row, trajectory in enumerate(t for group in learned for t in group.trajectories):
            rows.setdefault(id(trajectory), row)
        now, samples = self._clock(), Counter[str]()
        records: list[StreamRecord] = []
        for trajectory in sampled:
            row = rows.get(id(trajectory))
            place = EpisodePlace(step, samples[trajectory.task_id], now)
            samples[trajectory.task_id] += 1
            lot = random.Random(f"streams:{step}:{trajectory.task_id}")
            is_kept = lot.random() < self._kept.attempts_share
            has_values = is_kept and lot.random() < self._kept.token_values_share
            view = None
            if row is not None and update is not None and has_values:
                view = _view(update, row, trajectory)
            group = records if is_kept else self._unkept_groups.setdefault(trajectory.task_id, [])
            group.append(episode_record(trajectory, place, is_trained=row is not None, update=view))
        self._episodes.append(records)

    def add_step(self, row: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Write a step's figures, and what differs from run to run (seconds, rates)."""
        self._steps.append([_step_record(row, timings, self._clock())])

    def add_notices(self, notices: Sequence[Notice]) -> None:
        """Write what the detectors found, and the whole groups of the attempts that show it."""
        for name in (name for notice in notices for name in notice.attempts):
            task_id = name.partition("/")[2].rpartition("/")[0]
            self._episodes.append(self._unkept_groups.pop(task_id, ()))
        self._notices.append([notice.record() for notice in notices])

    def add_line(self, text: str, *, level: str = "note") -> None:
        """Write a line of the log, beside the detectors' notices.

        Args:
            text: what a user reads.
            level: "note", "warning" or "restart".
        """
        content = {"time": self._clock(), "level": level, "source": "log", "text": text}
        self._notices.append([StreamRecord(self._step, content)])

    def finish_segments(self) -> None:
        """End all segments, so that a checkpoint's copy has them."""
        for stream in (self._episodes, self._steps, self._notices):
            stream.finish_segment()


class LineTracker(NullTracker):
    """Tracker that writes every line of the log to the stream of notices."""

    def __init__(self, streams: NullStreams) -> None:
        self._streams = streams

    def note(self, line: str) -> None:
        """Write the line."""
        is_warning = line.startswith("warning")
        self._streams.add_line(line, level="warning" if is_warning else "note")


def _step_record(
    row: Mapping[str, float], timings: Mapping[str, float], now: float | None
) -> StreamRecord:
    content = {"time": now, "figures": _finite(row), "timings": _finite(timings)}
    return StreamRecord(int(row["step"]), content)


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return the figures with None for values that JSON does not know."""
    bound = float("inf")
    return {
        name: value if -bound < value < bound else None  # NaN is neither
        for name, value in figures.items()
        if value is not None
    }


def _view(update: UpdateTensors, row: int, trajectory: Trajectory) -> UpdateView:
    width = len(trajectory.token_ids)
    scores = update.scores if row in update.scored else None
    return UpdateView(
        advantages=update.advantages_BT[row, :width].tolist(),
        loss_mask=update.loss_mask_BT[row, :width].int().tolist(),
        trainer_logprobs=None if scores is None else scores.logprobs_BT[row, :width].tolist(),
        entropies=None if scores is None else scores.entropies_BT[row, :width].tolist(),
    )
