"""Replays kept histories through detectors, and tells failing runs from healthy ones.

A failing run counts as flagged by the first notice at or after its onset, if that comes at least
ten steps before the held-out score falls, or, where it does not fall or falls within ten steps of
the onset, within ten steps of the onset. A healthy run with a notice is a false alarm; notices of
a failing run before its onset, or that say they began before it, are counted apart.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from espalier.training.health import HealthMonitor, new_detectors
from espalier.training.health.detector import Drift
from tests.benchmarks.failures.kinds import KINDS, config_of
from tests.benchmarks.failures.runs import History, kept_histories

WITHIN = 10
"""Steps from the onset, or before the fall, in which a flag is in time."""
FALL = 0.1
"""A held-out score that stays this much below its best before has fallen."""


class Flag(NamedTuple):
    """The first notice of a detector in a run."""

    detector: str
    step: int
    since: int | None = None
    """Since when, by the detector's estimate; None where the tool gives none."""


Watch = Callable[[History], list[Flag]]
"""Returns the flags of a run, by step."""


def by_detectors(history: History) -> list[Flag]:
    """Return what this repository's detectors flag."""
    monitor = HealthMonitor(new_detectors(config_of(history.kind, history.seed)), lambda: 0.0)
    monitor.begin(history.start_dev_em)
    return [
        Flag(notice.detector, notice.step, notice.since_step)
        for row in history.rows
        for notice in monitor.observe(row)
    ]


def by_curve(figure: str, direction: float, threshold: float) -> Watch:
    """Return a watch over a single curve, by the same test as the detectors."""

    def flags(history: History) -> list[Flag]:
        drift = Drift(
            figure, figure, direction, 0.05, "", "", threshold=threshold, is_log=True, least=1e-4
        )
        return [Flag(figure, int(r["step"])) for r in history.rows if drift.observe(r) is not None]

    return flags


def falls_at(history: History) -> int | None:
    """Return the step at which the held-out score falls for good; None where it does not.

    It has fallen where every later evaluation, and there are two or more, is below its best before
    by FALL.
    """
    scores = [(0, history.start_dev_em)]
    scores += [(int(r["step"]), r["dev_em"]) for r in history.rows if "dev_em" in r]
    if len(scores) < 3:
        return None
    for place in range(1, len(scores) - 1):
        best = max(score for _, score in scores[:place])
        if all(best - score > FALL for _, score in scores[place:]):
            return scores[place][0]
    return None


class Verdict(NamedTuple):
    """What a watch says of one failing run."""

    is_in_time: bool
    is_flagged: bool
    delay: int | None = None
    """Steps from the onset to the first flag."""
    lead: int | None = None
    """Steps from the first flag to the fall; None without either."""
    first: str = ""
    early: Sequence[Flag] = ()
    """Flags before the onset, or of what began before it."""


def verdict(history: History, flags: Sequence[Flag]) -> Verdict:
    """Judge the flags of a failing run."""
    early = [flag for flag in flags if not _is_of(flag, history.onset)]
    told = [flag for flag in flags if _is_of(flag, history.onset)]
    fall = falls_at(history)
    if not told:
        return Verdict(is_in_time=False, is_flagged=False, early=early)
    first = min(told, key=lambda flag: flag.step)
    delay = first.step - history.onset
    lead = None if fall is None else fall - first.step
    in_time = delay <= WITHIN if lead is None else lead >= WITHIN or delay <= WITHIN
    return Verdict(
        is_in_time=in_time,
        is_flagged=True,
        delay=delay,
        lead=lead,
        first=first.detector,
        early=early,
    )


def _is_of(flag: Flag, onset: int) -> bool:
    """Return whether a flag can be of what began at `onset`.

    One that says that it began earlier, beyond two steps of an estimate's error, is not: it was
    another fluctuation.
    """
    return flag.step >= onset and (flag.since is None or flag.since >= onset - 2)


def held_back(history: History) -> bool:
    """Return whether a run set no threshold: odd seeds, and every second kind."""
    place = list(KINDS).index(history.kind)
    if history.kind == "healthy":
        return history.seed % 2 == 1
    return history.seed % 2 == 1 and place % 2 == 0


def report(out: Path) -> None:
    """Print the table of the kept runs."""
    histories = kept_histories(out)
    if not histories:
        print(f"{out}: no kept run; run `python -m tests.benchmarks.failures run` first")
        return
    _table("all runs", histories)
    _table("runs that set no threshold", [one for one in histories if held_back(one)])
    _baselines(histories)
    _others(histories, out)


def _table(title: str, histories: Sequence[History]) -> None:
    failing = [one for one in histories if one.onset]
    healthy = [one for one in histories if not one.onset]
    print(f"\n{title}: {len(failing)} failing, {len(healthy)} healthy")
    print(f"{'kind':<20} runs flagged in time  falls  delay  lead  first told by")
    by_kind: dict[str, list[History]] = defaultdict(list)
    for one in failing:
        by_kind[one.kind].append(one)
    total = [0, 0, 0]
    for kind, runs in by_kind.items():
        found = [verdict(one, by_detectors(one)) for one in runs]
        falls = [one for run in runs if (one := falls_at(run)) is not None]
        total = [
            total[0] + len(runs),
            total[1] + sum(it.is_flagged for it in found),
            total[2] + sum(it.is_in_time for it in found),
        ]
        print(
            f"{kind:<20} {len(runs):>4} {sum(it.is_flagged for it in found):>7} "
            f"{sum(it.is_in_time for it in found):>7}  {len(falls):>5}  "
            f"{_median([it.delay for it in found]):>5}  {_median([it.lead for it in found]):>4}  "
            f"{', '.join(sorted({it.first for it in found if it.first}))}"
        )
    if total[0]:
        print(
            f"{'together':<20} {total[0]:>4} {total[1]:>7} {total[2]:>7}  "
            f"({total[2] / total[0]:.0%} in time)"
        )
    told = [(one, by_detectors(one)) for one in healthy]
    alarms = [(one, flags) for one, flags in told if flags]
    fell = {one.seed: step for one, _ in alarms if (step := falls_at(one)) is not None}
    print(
        f"false alarms: {len(alarms)} of {len(healthy)} healthy runs; in {len(fell)} of them the "
        "held-out score falls all the same"
    )
    for one, flags in alarms:
        told_of = ", ".join(f"{f.detector} at {f.step}" for f in flags)
        falls_in = f" (falls at {fell[one.seed]})" if one.seed in fell else ""
        print(f"  healthy-{one.seed}: {told_of}{falls_in}")
    early = {f"{one.kind}-{one.seed}": verdict(one, by_detectors(one)).early for one in failing}
    wrong = {name: flags for name, flags in early.items() if flags}
    print(f"before the onset: {len(wrong)} of {len(failing)} failing runs")
    for name, flags in wrong.items():
        print(f"  {name}: " + ", ".join(f"{f.detector} at {f.step}" for f in flags))


def _median(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):g}" if known else "-"


def _baselines(histories: Sequence[History]) -> None:
    """Print single curves at the false alarms of the detectors, on all runs."""
    failing = [one for one in histories if one.onset]
    healthy = [one for one in histories if not one.onset]
    allowed = sum(bool(by_detectors(one)) for one in healthy)
    print(f"\nsingle curves, each at most {allowed} of {len(healthy)} false alarms:")
    for name, figure, direction in (
        ("entropy falls", "entropy", -1.0),
        ("entropy rises", "entropy", 1.0),
        ("gradient norm rises", "grad_norm", 1.0),
        ("reward falls", "reward", -1.0),
    ):
        best: Mapping[str, float] = {}
        for threshold in (1, 2, 3, 4, 6, 8, 10, 14, 20, 30):
            watch = by_curve(figure, direction, float(threshold))
            if sum(bool(watch(one)) for one in healthy) > allowed:
                continue
            found = [verdict(one, watch(one)) for one in failing]
            share = sum(it.is_in_time for it in found) / max(1, len(found))
            best = {"threshold": threshold, "share": share}
            break
        shown = f"{best['share']:.0%} in time (threshold {best['threshold']:g})" if best else "none"
        print(f"  {name:<22} {shown}")


def _others(histories: Sequence[History], out: Path) -> None:
    """Print what `others.py` found with rlwatch and rldoctor, where it was run."""
    path = out / "others.json"
    if not path.is_file():
        print(f"\nno {path}: see tests/benchmarks/failures/others.py for rlwatch and rldoctor")
        return
    kept = json.loads(path.read_bytes())
    known = [one for one in histories if f"{one.kind}-{one.seed}" in kept]
    failing, healthy = ([o for o in known if bool(o.onset) is is_it] for is_it in (True, False))
    print(f"\nother tools on {len(failing)} failing and {len(healthy)} healthy runs:")
    for tool in ("rlwatch", "rlwatch short", "rldoctor", "rldoctor short"):

        def flags(history: History, tool: str = tool) -> list[Flag]:
            return [Flag(*pair) for pair in kept[f"{history.kind}-{history.seed}"][tool]]

        found = [verdict(one, flags(one)) for one in failing]
        alarms = sum(bool(flags(one)) for one in healthy)
        print(
            f"  {tool:<16} {sum(it.is_in_time for it in found)} of {len(found)} in time, "
            f"{sum(bool(it.early) for it in found)} flagged before the onset, "
            f"{alarms} of {len(healthy)} healthy runs flagged"
        )
