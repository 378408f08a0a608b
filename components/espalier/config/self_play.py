"""Profile section `self_play`: what proposes tasks between the phases of training, by name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.teacher import TeacherConfig
from espalier.config.training import TrainingConfig


class NoSelfPlayConfig(Section):
    """Training draws from the tasks that it began with, and from no others."""

    name: Literal["off"] = "off"


class _PosingConfig(Section):
    posed_tasks: int = Field(default=64, ge=1)
    """Tasks to propose at a refresh of the curriculum, before any is tried; there may be fewer
    where the source runs dry, or nothing has failed."""
    rollouts_per_task: int = Field(default=4, ge=1)
    """Attempts of the current policy at each proposed task, which give the task's pass rate."""


class WebRLConfig(_PosingConfig):
    """Tasks that evolve from the instructions which the policy failed (arXiv:2411.02337)."""

    name: Literal["webrl"] = "webrl"
    proposer: Literal["graph", "teacher"] = "graph"
    """"graph" varies the pattern of a failed question over the triples; "teacher" has the model of
    [teacher.endpoint] propose patterns and entities, and refuses what the triples do not prove. Its
    max_cost holds for each refresh; with its cache set, a resumed run proposes the same."""
    value: Literal["pass_rate", "critic"] = "pass_rate"
    """What stands for V(s0): the pass rate of the attempts, or what the critic that is trained
    beside the policy says before the first action, in units of the reward."""
    value_band: tuple[float, float] = (0.05, 0.75)
    """Tasks whose value lies inside are kept, both ends included (sec. 3.2)."""

    @model_validator(mode="after")
    def _band_is_an_interval(self) -> Self:
        low, high = self.value_band
        if not low < high:
            raise ValueError(f"self_play.value_band={self.value_band} is not an interval")
        return self


class RZeroConfig(_PosingConfig):
    """A challenger proposes what the policy solves every other time (arXiv:2508.05004)."""

    name: Literal["r_zero"] = "r_zero"
    reward: Literal["r_zero", "r_zero_code"] = "r_zero"
    """What the challenger earns of a task at pass rate p, less its repetition: 1 - 2 |p - 1/2|,
    never below 0, in the paper; min(p, 1 - p), half of it, in the public code."""
    max_distance: float = Field(default=0.25, gt=0, le=0.5)
    """Tasks are kept where |p - 1/2| is at most this."""
    repetition_weight: float = Field(default=1.0, ge=0)
    """Weight of the share of a phase's questions that lie in the task's cluster; 0 penalises no
    repetition."""
    cluster_distance: float = Field(default=0.5, ge=0, le=1)
    """Questions form a cluster while their mean distance, 1 - BLEU, is below this."""


class AbsoluteZeroConfig(_PosingConfig):
    """Triples of program, input and output, proven in a sandbox (arXiv:2505.03335)."""

    name: Literal["absolute_zero"] = "absolute_zero"
    proposer: Literal["chains", "teacher"] = "chains"
    """"chains" draws programs of one to four operations on a number; "teacher" has the model of
    [teacher.endpoint] write them. Either way a sandbox runs them twice before they count."""
    asked: tuple[Literal["output", "input", "program"], ...] = Field(
        default=("output", "input", "program"), min_length=1
    )
    """What a task leaves out: deduction, abduction, induction."""
    reward: Literal["absolute_zero", "absolute_zero_code"] = "absolute_zero_code"
    """What the proposer earns at pass rate p: 1 - p; in the public code nothing at p = 0."""
    kept: Literal["all", "non_one", "non_extremes"] = "all"
    """Which tasks are kept: any, any that was not always solved, or any that was solved sometimes
    (`valid_program_filter` of the public code)."""


PosingConfig = WebRLConfig | RZeroConfig | AbsoluteZeroConfig
"""The rules that propose tasks."""
SelfPlayConfig = Annotated[NoSelfPlayConfig | PosingConfig, Field(discriminator="name")]


def require_means(
    posing: SelfPlayConfig,
    training: TrainingConfig,
    teacher: TeacherConfig,
) -> None:
    """Check that the rest of the profile has what self-play proves and judges its tasks by.

    Raises:
        ValueError: it has not; naming what to set.
    """
    if isinstance(posing, NoSelfPlayConfig):
        return
    if isinstance(posing, RZeroConfig):
        return
    if posing.proposer == "teacher" and teacher.kind != "endpoint":
        raise ValueError(
            'self_play.proposer = "teacher" asks a model: set teacher.kind = "endpoint" and '
            "teacher.endpoint, or leave the proposer out"
        )
    asks_critic = isinstance(posing, WebRLConfig) and posing.value == "critic"
    if asks_critic and training.algorithm.critic is None:
        raise ValueError(
            f'self_play.value = "critic" asks a critic, and preset "{training.algorithm.preset}" '
            'trains none; choose training.algorithm.preset = "ppo", or value = "pass_rate"'
        )
