"""Profile sections `reward_model`, `reward.process`, `reward.outcome_model`: trained heads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from espalier.config.data import Section


class RewardModelConfig(Section):
    """What `espalier reward-model` trains on, and how; no stage of a run reads it."""

    labels: Literal["soft", "hard"] = "soft"
    """What a step is worth: the share of its completions that end right, or whether any does
    (Math-Shepherd, Wang et al. 2024, arXiv:2312.08935, eq. 3 and 4)."""
    tasks: int = Field(default=200, ge=2)
    """Training tasks that are attempted."""
    attempts: int = Field(default=4, ge=1)
    """Attempts at each, whose steps are labelled."""
    completions: int = Field(default=4, ge=1)
    """Ways in which the policy ends an attempt from each of its steps."""
    dev_tasks: int = Field(default=50, ge=2)
    """Dev tasks on whose attempts the head is judged."""
    steps: int = Field(default=150, ge=1)
    """Optimizer steps."""
    attempts_per_step: int = Field(default=32, ge=1)
    """Attempts in a batch."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Peak of the schedule."""


class ProcessRewardConfig(Section):
    """A trained head that scores the steps of attempts, beside their outcome."""

    model: Path
    """Folder that `espalier reward-model` wrote."""
    weight: float = Field(default=0.3, gt=0)
    """Paid for steps of score 1."""
    reduce: Literal["progress", "mean", "min"] = "progress"
    """How steps become rewards: each turn is paid what it changed of the score, so that an episode
    earns the score of its last step; or the mean, or the least score, at the end."""


class OutcomeModelConfig(Section):
    """A trained head as the outcome of training, in the place of the rule: for comparison.

    Evaluation, dev scores and the curriculum's screening keep to the rule.
    """

    model: Path
    """Folder that `espalier reward-model --kind outcome` wrote."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """Score from which an attempt counts as right."""
