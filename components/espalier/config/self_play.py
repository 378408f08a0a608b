"""Profile section `self_play`: the rule that proposes tasks between phases of training."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.teacher import TeacherConfig
from espalier.config.training import TrainingConfig


class NoSelfPlayConfig(Section):
    """No self-play: training draws only from the tasks that it began with."""

    name: Literal["off"] = "off"


class _PosingConfig(Section):
    posed_tasks: int = Field(default=64, ge=1)
    """Number of tasks to propose at each refresh of the curriculum, before any is filtered; fewer
    if the source is exhausted, or nothing has failed."""
    rollouts_per_task: int = Field(default=4, ge=1)
    """Attempts of the current policy at each proposed task, which estimate its pass rate."""


class WebRLConfig(_PosingConfig):
    """Tasks that evolve from instructions that the policy failed (WebRL, arXiv:2411.02337)."""

    name: Literal["webrl"] = "webrl"
    proposer: Literal["graph", "teacher"] = "graph"
    """"graph" varies the pattern of a failed question over the triples; "teacher" lets the model of
    [teacher.endpoint] propose patterns and entities, and rejects those that the triples do not
    prove. Its max_cost limits each refresh; with its cache set, a resumed run proposes the same."""
    value: Literal["pass_rate", "critic"] = "pass_rate"
    """Estimate of V(s0): the pass rate of the attempts, or the value that the policy's critic
    predicts before the first action, in units of the reward."""
    value_band: tuple[float, float] = (0.05, 0.75)
    """Interval of the values of kept tasks, both ends included (sec. 3.2)."""

    @model_validator(mode="after")
    def _band_is_an_interval(self) -> Self:
        low, high = self.value_band
        if not low < high:
            raise ValueError(f"self_play.value_band={self.value_band} is not an interval")
        return self


class RZeroConfig(_PosingConfig):
    """Tasks of a challenger that the policy solves half of the time (R-Zero, arXiv:2508.05004)."""

    name: Literal["r_zero"] = "r_zero"
    reward: Literal["r_zero", "r_zero_code"] = "r_zero"
    """Reward of the challenger for a task with pass rate p, minus a repetition penalty: "r_zero" is
    the paper's 1 - 2 |p - 1/2|, cut off below 0; "r_zero_code" is the public code's min(p, 1 - p),
    half of that."""
    max_distance: float = Field(default=0.25, gt=0, le=0.5)
    """Largest |p - 1/2| of a kept task."""
    repetition_weight: float = Field(default=1.0, ge=0)
    """Weight of the repetition penalty: the share of a phase's questions in the task's cluster (a
    mean distance, 1 - BLEU, below 0.5)."""


class AbsoluteZeroConfig(_PosingConfig):
    """Tasks from triples of program, input and output (Absolute Zero, arXiv:2505.03335)."""

    name: Literal["absolute_zero"] = "absolute_zero"
    proposer: Literal["chains", "teacher"] = "chains"
    """"chains" draws programs of one to four operations on a number; "teacher" lets the model of
    [teacher.endpoint] write them. In both cases a sandbox runs them twice before they count."""
    asked: tuple[Literal["output", "input", "program"], ...] = Field(
        default=("output", "input", "program"), min_length=1
    )
    """Parts of the triple that tasks leave out: output (deduction), input (abduction), program
    (induction)."""
    reward: Literal["absolute_zero", "absolute_zero_code"] = "absolute_zero_code"
    """Reward of the proposer for a task with pass rate p: 1 - p; in the public code 0 at p = 0."""
    kept: Literal["all", "non_one", "non_extremes"] = "all"
    """Kept tasks: "all"; "non_one", those not always solved; "non_extremes", those solved sometimes
    (`valid_program_filter` of the public code)."""


PosingConfig = WebRLConfig | RZeroConfig | AbsoluteZeroConfig
"""A rule that proposes tasks."""
SelfPlayConfig = Annotated[NoSelfPlayConfig | PosingConfig, Field(discriminator="name")]


def require_means(
    posing: SelfPlayConfig,
    training: TrainingConfig,
    teacher: TeacherConfig,
) -> None:
    """Check that the profile has the means to prove and judge the tasks of self-play.

    Raises:
        ValueError: it does not; the message names what to set.
    """
    if isinstance(posing, NoSelfPlayConfig):
        return
    if isinstance(posing, RZeroConfig):
        return
    if posing.proposer == "teacher" and teacher.kind != "endpoint":
        raise ValueError(
            'self_play.proposer = "teacher" needs a model: set teacher.kind = "endpoint" and '
            "teacher.endpoint, or leave the proposer out"
        )
    needs_critic = isinstance(posing, WebRLConfig) and posing.value == "critic"
    if needs_critic and training.algorithm.critic is None:
        raise ValueError(
            f'self_play.value = "critic" needs a critic, but preset "{training.algorithm.preset}" '
            'trains none; choose training.algorithm.preset = "ppo", or value = "pass_rate"'
        )
