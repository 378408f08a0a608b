"""Evaluate a policy: roll out the suite, score the answers, store the result on disk."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.environments import EnvironmentLostError, Environments
from espalier.environments.mixins import LooksAnswersUp
from espalier.evaluation.questions import (
    FromMemory,
    QuestionRow,
    is_grounded,
    questions_table,
    read_questions,
    score_question,
)
from espalier.evaluation.suite import Suite, make_suite
from espalier.records import Task
from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from espalier.records.streams import STREAMS_FOLDER, StreamWriter, name_streams
from espalier.records.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.rollout.closed_book import ClosedBookQuestion
from espalier.rollout.roller import DriftCount, Roller


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """Tokens and time of the rollouts, from the roller's counters."""

    action_tokens: int
    total_tokens: int
    seconds: float
    token_drift: int = 0
    """Turns whose tokens differ from the chat template's rendering of the whole conversation."""
    compared_turns: int = 0
    """Turns that were compared with that rendering; see `rollout.compare_every`."""
    replays: int = 0
    """Repeated attempts at lost episodes; see `rollout.max_replays`."""


class PolicyEvaluation(NamedTuple):
    """One policy's rows in the order of the suite, a sample of greedy trajectories, and costs."""

    rows: list[QuestionRow]
    kept: list[Trajectory]
    cost: RolloutCost


class FinishedEvaluations:
    """Finished evaluations on disk, by key, saved atomically; a resumed stage skips them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str, evaluate: Callable[[], PolicyEvaluation]) -> PolicyEvaluation:
        """Return the stored evaluation of `key`, calling `evaluate` first if there is none.

        A new one is read back from disk too, so that a resumed run equals an unbroken one.
        """
        if not (self._directory / key).is_dir():
            self._save(key, evaluate())
        return self._load(key)

    def _load(self, key: str) -> PolicyEvaluation:
        folder = self._directory / key
        (rows,) = read_questions(folder / "questions.parquet").values()
        cost = RolloutCost(**json.loads((folder / "cost.json").read_bytes()))
        return PolicyEvaluation(rows, read_trajectories(folder / "trajectories.parquet"), cost)

    def _save(self, key: str, evaluation: PolicyEvaluation) -> None:
        draft = self._directory / f".{key}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        pq.write_table(questions_table({key: evaluation.rows}), draft / "questions.parquet")
        write_trajectories(draft / "trajectories.parquet", evaluation.kept)
        (draft / "cost.json").write_text(json.dumps(asdict(evaluation.cost)), encoding="utf-8")
        draft.rename(self._directory / key)

    def attempts_folder(self, key: str) -> Path:
        """Return the folder for the stream of an evaluation's attempts."""
        return self._directory / f"{key}.{STREAMS_FOLDER}"

    def name_attempts(self, keys: Mapping[str, str]) -> None:
        """Write which policy's attempts are in which folder, for those who follow them."""
        self._directory.mkdir(parents=True, exist_ok=True)
        folders = {policy: self.attempts_folder(key) for policy, key in keys.items()}
        name_streams(self._directory, folders)


def choose_examples(
    trajectories: Sequence[Trajectory], is_right: Sequence[bool], count: int
) -> list[Trajectory]:
    """Choose at most `count` trajectories as examples, half of them right and half wrong.

    They are spread over the suite and keep its order; if one half has too few, the other fills up.
    """
    right = [place for place, correct in enumerate(is_right) if correct]
    wrong = [place for place, correct in enumerate(is_right) if not correct]
    num_right = min(len(right), max(count - count // 2, count - len(wrong)))
    num_wrong = min(len(wrong), count - num_right)
    chosen = sorted([*_spread(right, num_right), *_spread(wrong, num_wrong)])
    return [trajectories[place] for place in chosen]


def _spread(places: Sequence[int], count: int) -> list[int]:
    """`count` evenly spaced elements of `places`: the suite may be sorted by difficulty."""
    return [places[number * len(places) // count] for number in range(count)]


class CountingRoller(Protocol):
    """A roller that reports lost episodes at once, and counts its tokens and time."""

    def roll_out(
        self,
        tasks: Sequence[Task],
        *,
        samples: int,
        temperature: float,
        seed: int,
        on_lost: Callable[[Trajectory], None],
        on_ended: Callable[[int, Trajectory], None],
    ) -> list[Trajectory]:
        """Play an episode for each task, as `Roller.roll_out` does."""
        ...

    def closed_book(self, questions: Sequence[ClosedBookQuestion]) -> list[str | None]:
        """Answer the questions from memory, as `Roller.closed_book` does."""
        ...

    @property
    def replays(self) -> int:
        """Repeated attempts at lost episodes so far."""
        ...

    @property
    def action_tokens(self) -> int:
        """Tokens sampled so far."""
        ...

    @property
    def total_tokens(self) -> int:
        """Tokens read and sampled so far."""
        ...

    @property
    def seconds(self) -> float:
        """Time spent in rollouts so far."""
        ...

    @property
    def drift(self) -> DriftCount:
        """Turns compared with the chat template's rendering, and how many differed."""
        ...


def evaluate_policy(
    policy_dir: Path, tasks: Sequence[Task], environments: Environments, profile: Profile
) -> list[QuestionRow]:
    """Evaluate the model directory `policy_dir` on `tasks`, as the `evaluate` stage does.

    The rows are comparable with the stage's if tasks, knowledge and settings are the suite's.

    Raises:
        PolicyError: the directory cannot be loaded, or its tokenizer has no chat template.
    """
    roller = Roller.open(policy_dir, environments, profile)
    return evaluate_on_suite(roller, make_suite(profile, tasks, ""), profile.seed).rows


class LossLimit:
    """Aborts an evaluation once more episodes stayed lost than are allowed.

    A lost question counts as wrong, so that no policy gains by losing one; with too many of them
    the figures would mean nothing.
    """

    def __init__(self, num_episodes: int, share: float, remedy: str = "") -> None:
        """Count from 0.

        Args:
            num_episodes: number of episodes of the whole evaluation.
            share: share of them that may stay lost, 0-1; at least one may.
            remedy: last sentence of the error; by default to repair the tool.
        """
        self._remedy = remedy or (
            "Repair the tool, or raise rollout.tool_timeout_s, and evaluate again"
        )
        self._num_episodes = num_episodes
        self._most = max(1, int(share * num_episodes))
        self._share = share
        self._lost: Counter[str] = Counter()

    def count(self, lost: Trajectory, because: str = "") -> None:
        """Count an episode that was lost in every attempt; the error quotes `because`.

        Raises:
            EnvironmentLostError: more episodes are lost than are allowed.
        """
        self._lost[lost.finish_reason.value] += 1
        if self._lost.total() > self._most:
            causes = ", ".join(f"{count} {reason}" for reason, count in sorted(self._lost.items()))
            if because:
                causes += f"; the last: {because}"
            raise EnvironmentLostError(
                f"{self._lost.total()} of {self._num_episodes} evaluation episodes lost their "
                f"environment in every attempt ({causes}), and evaluation.max_lost_share="
                f"{self._share:g} allows {self._most}. {self._remedy}"
            )


def evaluate_on_suite(
    roller: CountingRoller, suite: Suite, seed: int, attempts: Path | None = None
) -> PolicyEvaluation:
    """Roll the suite out greedily, then its first questions by sampling, and score both.

    Questions of families whose tools look answers up are also answered from memory.

    Args:
        roller: samples the policy's attempts.
        suite: the questions.
        seed: seed of the sampling.
        attempts: folder for a stream of all attempts; None writes none.

    Raises:
        EnvironmentLostError: more episodes stayed lost than `evaluation.max_lost_share` allows.
    """
    config = suite.config
    each = config.samples_per_task
    limit = LossLimit(len(suite.tasks) + each * len(suite.sampled_tasks), config.max_lost_share)
    stream = None if attempts is None else AttemptStream(attempts)
    greedy = roller.roll_out(
        suite.tasks,
        samples=1,
        temperature=0.0,
        seed=seed,
        on_lost=limit.count,
        on_ended=lambda _, ended: stream.add(ended, 0) if stream else None,
    )
    sampled = roller.roll_out(
        suite.sampled_tasks,
        samples=each,
        temperature=config.temperature,
        seed=seed,
        on_lost=limit.count,
        on_ended=lambda place, ended: stream.add(ended, 1 + place % each) if stream else None,
    )
    from_memory = _from_memory(roller, suite)
    rows = [
        # A slice past the end is empty: a question outside the sampled part has no samples.
        score_question(
            task,
            suite.groups[place],
            greedy[place],
            sampled[place * each : (place + 1) * each],
            has_text_answer=suite.family.of(task).has_text_answer(task),
            grounded=is_grounded(greedy[place])
            if isinstance(suite.family.of(task), LooksAnswersUp)
            else None,
            from_memory=from_memory.get(task.task_id),
        )
        for place, task in enumerate(suite.tasks)
    ]
    is_right = [row.em for row in rows]
    kept = choose_examples(greedy, is_right, config.kept_trajectories)
    cost = RolloutCost(
        action_tokens=roller.action_tokens,
        total_tokens=roller.total_tokens,
        seconds=round(roller.seconds, 3),
        token_drift=roller.drift.drifted,
        compared_turns=roller.drift.turns,
        replays=roller.replays,
    )
    if stream is not None:
        stream.finish()
    return PolicyEvaluation(rows, kept, cost)


class AttemptStream:
    """The stream of an evaluation's attempts, in the order in which they end."""

    def __init__(self, folder: Path) -> None:
        """Begin anew: an evaluation that was killed plays all of its questions again."""
        self._writer = StreamWriter(folder, EPISODES)
        self._writer.keep_until(-1)

    def add(self, ended: Trajectory, sample: int) -> None:
        """Write an attempt.

        Args:
            ended: the attempt.
            sample: its number among those at its question; 0 is the greedy one.
        """
        place = EpisodePlace(0, sample, time.time())
        self._writer.append([episode_record(ended, place)])

    def finish(self) -> None:
        """End the stream's last segment."""
        self._writer.finish_segment()


def _from_memory(roller: CountingRoller, suite: Suite) -> dict[str, FromMemory]:
    """Task id -> answer without tools, for the suite's `closed_book_tasks`."""
    tasks, family = suite.closed_book_tasks, suite.family
    if not tasks:
        return {}
    questions = [
        ClosedBookQuestion(task, own.closed_book)
        for task in tasks
        if isinstance(own := family.of(task), LooksAnswersUp)
    ]
    answers = zip(tasks, roller.closed_book(questions), strict=True)
    return {
        task.task_id: FromMemory(family.of(task).verify(task, answer) > 0, answer)
        for task, answer in answers
    }
