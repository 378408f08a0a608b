"""Profile sections `reward_model`, `reward.process`, `reward.outcome_model`: trained heads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from espalier.config.data import Section


class RewardModelConfig(Section):
    """Data and optimization of `espalier reward-model`; no stage of a run reads it."""

    labels: Literal["soft", "hard"] = "soft"
    """Label of a step: "soft" is the share of its completions that end right, "hard" whether any
    does (Math-Shepherd, Wang et al. 2024, arXiv:2312.08935, eq. 3 and 4)."""
    tasks: int = Field(default=200, ge=2)
    """Number of training tasks."""
    attempts: int = Field(default=4, ge=1)
    """Attempts at each task, whose steps are labelled."""
    completions: int = Field(default=4, ge=1)
    """Completions that the policy samples from each step of an attempt."""
    dev_tasks: int = Field(default=50, ge=2)
    """Number of dev tasks, on whose attempts the head is evaluated."""
    steps: int = Field(default=150, ge=1)
    """Optimizer steps."""
    attempts_per_step: int = Field(default=32, ge=1)
    """Attempts in a batch."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """Peak of the schedule."""


class ProcessRewardConfig(Section):
    """A trained head that scores the steps of attempts, in addition to their outcome."""

    model: Path
    """Folder that `espalier reward-model` wrote."""
    weight: float = Field(default=0.3, gt=0)
    """Reward for steps with score 1."""
    reduce: Literal["progress", "mean", "min"] = "progress"
    """Reward from step scores: "progress" rewards each turn with its change of the score, which
    sums to the score of the last step; "mean" and "min" reward the end of the episode."""


class OutcomeModelConfig(Section):
    """A trained head as the outcome of training instead of the rule, for comparison.

    Evaluation, dev scores and the curriculum's screening still use the rule.
    """

    model: Path
    """Folder that `espalier reward-model --kind outcome` wrote."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """Least score of an attempt that counts as right."""
