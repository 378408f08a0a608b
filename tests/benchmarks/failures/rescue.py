"""What `training.health.response = "act"` saves of failing runs, and what it costs healthy ones.

A failing run is compared with its healthy twin: the same seed and warm policy, and the settings
that most kinds have. Scores are shares of right sampled attempts at the held-out questions, of the
weights that a run hands on (those of its best dev score) and of those of its last step. A run of
which the detectors tell nothing that has a response is the same with "act", and not trained again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from espalier.training.health.responses import RESPONSES
from tests.benchmarks.failures.kinds import settings_of
from tests.benchmarks.failures.runs import History, path_of, read_history
from tests.benchmarks.failures.score import by_detectors

WITHIN = 0.02
"""A score this near to the twin's is as good."""
ACT = {"health": {"response": "act"}}


class Task(NamedTuple):
    """One run to train."""

    kind: str
    seed: int
    settings: Mapping[str, Any]
    name: str
    """Of its file below the library's folder, without the ending."""


class Trio(NamedTuple):
    """A run, the same with "act", and its healthy twin; for a healthy run that is itself."""

    warned: History
    acted: History
    twin: History


def missing(out: Path, runs: Sequence[tuple[str, int]]) -> Iterator[Task]:
    """Yield what is to be trained for `runs`, pairs of kind and seed, in their order.

    Whether a run is needed with "act" is known when it has been trained without: read on between.
    """
    for kind, seed in runs:
        if kind != "healthy" and not _twin(out, seed).is_file():
            yield Task("healthy", seed, {}, f"twins/healthy-{seed}")
        settings = settings_of(kind, seed)
        if not path_of(out, kind, seed).is_file():
            yield Task(kind, seed, settings, f"{kind}-{seed}")
        is_answered = _is_answered(read_history(path_of(out, kind, seed)))
        if is_answered and not _acting(out, kind, seed).is_file():
            yield Task(kind, seed, settings | ACT, f"act/{kind}-{seed}")


def _twin(out: Path, seed: int) -> Path:
    return path_of(out / "twins", "healthy", seed)


def _acting(out: Path, kind: str, seed: int) -> Path:
    return path_of(out / "act", kind, seed)


def _is_answered(history: History) -> bool:
    """Return whether a detector with a response speaks of it."""
    return any(flag.detector in RESPONSES for flag in by_detectors(history))


def trios(out: Path, runs: Sequence[tuple[str, int]]) -> list[Trio]:
    """Return those of `runs` that are whole."""
    found: list[Trio] = []
    for kind, seed in runs:
        path, acting = path_of(out, kind, seed), _acting(out, kind, seed)
        if not path.is_file():
            continue
        warned = read_history(path)
        if not _is_answered(warned):
            acted = warned
        elif acting.is_file():
            acted = read_history(acting)
        else:
            continue
        if kind == "healthy":
            found.append(Trio(warned, acted, warned))
        elif _twin(out, seed).is_file():
            found.append(Trio(warned, acted, read_history(_twin(out, seed))))
    return found


Score = Callable[[History], float]


def handed_on(history: History) -> float:
    """Return the score of the weights that a run hands on; 0 where it ended with an error."""
    return float(history.about["kept"] or 0.0)


def of_last_step(history: History) -> float:
    """Return the score of the weights of a run's last step; 0 where it ended with an error."""
    return float(history.about["last"] or 0.0)


SCORES: Mapping[str, Score] = {"handed on": handed_on, "last step": of_last_step}


def report(out: Path, runs: Sequence[tuple[str, int]]) -> None:
    """Print the tables of the runs that are there."""
    found = trios(out, runs)
    failing = [one for one in found if one.warned.kind != "healthy"]
    healthy = [one for one in found if one.warned.kind == "healthy"]
    for name, score in SCORES.items():
        if failing:
            _table(name, score, failing)
        if healthy:
            lost = [score(one.warned) - score(one.acted) for one in healthy]
            answered = sum(one.acted is not one.warned for one in healthy)
            print(
                f"healthy, {name}: acting costs {100 * fmean(lost):.2f} points in the mean, "
                f"{100 * max(lost):.1f} at most, of {len(healthy)} runs; {answered} were answered"
            )


def is_near(history: History, twin: History, score: Score) -> bool:
    """Return whether a run's score is within WITHIN of its twin's, or above."""
    return score(history) >= score(twin) - WITHIN


def _table(name: str, score: Score, found: Sequence[Trio]) -> None:
    by_kind: dict[str, list[Trio]] = defaultdict(list)
    for one in found:
        by_kind[one.warned.kind].append(one)
    print(f"\nweights {name}: mean points of 100, and runs within {100 * WITHIN:g} of the twin:")
    print(f"{'kind':<20} runs  twin  warn   act  near: warn act  done")
    for kind, some in by_kind.items():
        warn, act, twin = (
            100 * fmean(map(score, histories)) for histories in zip(*some, strict=True)
        )
        print(
            f"{kind:<20} {len(some):>4} {twin:>5.1f} {warn:>5.1f} {act:>5.1f} "
            f"{_near(some, score):>14}  {_done(some)}"
        )
    print(f"{'together':<20} {len(found):>4} {'':<17} {_near(found, score):>14}")


def _near(some: Sequence[Trio], score: Score) -> str:
    without = sum(is_near(one.warned, one.twin, score) for one in some)
    acting = sum(is_near(one.acted, one.twin, score) for one in some)
    return f"{without:>3} {acting:>3}"


def _done(some: Sequence[Trio]) -> str:
    """Return what acting runs did, with how often."""
    acted = [one.acted for one in some if one.acted is not one.warned]
    counts = Counter(
        action for history in acted for _, _, action in history.about["notices"] if action
    )
    return ", ".join(f"{action} {count}" for action, count in counts.items())
