"""Which of the posed tasks are kept, and what each earned, by the rule that the profile names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from espalier.config import AbsoluteZeroConfig, PosingConfig, RZeroConfig, WebRLConfig
from espalier.curriculum.learnability import LEARNABILITY, r_zero, r_zero_code
from espalier.curriculum.self_play.repetition import cluster_shares
from espalier.synthesis.self_play import Trial


class Verdict(NamedTuple):
    """On one posed task."""

    fault: str
    """Why it is refused; empty where it is kept."""
    reward: float | None = None
    """What whoever poses such tasks earned; None where the rule pays nobody."""


def judged(trials: Sequence[Trial], config: PosingConfig) -> list[Verdict]:
    """A verdict on every trial of a phase, each of which has one attempt at least."""
    match config:
        case WebRLConfig():
            return [_by_value(trial, config) for trial in trials]
        case RZeroConfig():
            rewards = challenger_rewards(trials, config)
            faults = [_by_distance(trial, config) for trial in trials]
            return [Verdict(*pair) for pair in zip(faults, rewards, strict=True)]
        case AbsoluteZeroConfig():
            pay = LEARNABILITY[config.reward]
            return [Verdict(_by_extreme(trial, config), pay(trial.pass_rate)) for trial in trials]


def challenger_rewards(trials: Sequence[Trial], config: RZeroConfig) -> list[float]:
    """How uncertain the policy was of each task, less the task's repetition in the phase.

    max(0, 1 - 2 |p - 1/2| - w s), with s the share of the task's cluster (arXiv:2508.05004, sec.
    3.1). The public code pays min(p, 1 - p) - w s, which may fall below 0 (`compute_score`).
    """
    questions = [trial.task.question for trial in trials]
    shares = [0.0] * len(questions)
    if config.repetition_weight:
        shares = cluster_shares(questions, config.cluster_distance)
    pay = r_zero if config.reward == "r_zero" else r_zero_code
    earned = [
        pay(trial.pass_rate) - config.repetition_weight * share
        for trial, share in zip(trials, shares, strict=True)
    ]
    return [max(0.0, reward) for reward in earned] if config.reward == "r_zero" else earned


def _by_value(trial: Trial, config: WebRLConfig) -> Verdict:
    """WebRL's filter: neither out of reach nor mastered (arXiv:2411.02337, sec. 3.2)."""
    value = trial.pass_rate if config.value == "pass_rate" else trial.value
    low, high = config.value_band
    if math.isnan(value):
        return Verdict("never_acted")
    return Verdict("too_hard" if value < low else "too_easy" if value > high else "")


def _by_distance(trial: Trial, config: RZeroConfig) -> str:
    """R-Zero's filter, both ends included."""
    if abs(trial.pass_rate - 0.5) <= config.max_distance:
        return ""
    return "too_hard" if trial.pass_rate < 0.5 else "too_easy"


def _by_extreme(trial: Trial, config: AbsoluteZeroConfig) -> str:
    """Absolute Zero's filter of the public code."""
    if config.kept != "all" and trial.pass_rate == 1:
        return "too_easy"
    return "too_hard" if config.kept == "non_extremes" and trial.pass_rate == 0 else ""
