"""Which of the posed tasks are kept, by the rule that the profile names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from espalier.config import WebRLConfig
from espalier.curriculum.self_play.posing import Trial


class Verdict(NamedTuple):
    """On one posed task."""

    fault: str
    """Why it is refused; empty where it is kept."""


def judged(trials: Sequence[Trial], config: WebRLConfig) -> list[Verdict]:
    """A verdict on every trial, each of which has one attempt at least."""
    return [_by_value(trial, config) for trial in trials]


def _by_value(trial: Trial, config: WebRLConfig) -> Verdict:
    """WebRL's filter: neither out of reach nor mastered (arXiv:2411.02337, sec. 3.2)."""
    value = trial.pass_rate if config.value == "pass_rate" else trial.value
    low, high = config.value_band
    if math.isnan(value):
        return Verdict("never_acted")
    return Verdict("too_hard" if value < low else "too_easy" if value > high else "")
