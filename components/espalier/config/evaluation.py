"""Profile sections of evaluation: the run's held-out tasks, further suites, endpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from espalier.config.data import Section
from espalier.config.environment import EnvironmentConfig, named_environment
from espalier.config.learning import EpisodeConfig
from espalier.config.teacher import EndpointConfig

HELDOUT = "heldout"
"""Name of a run's own held-out tasks among its suites."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SuiteConfig(Section):
    """A suite: tasks of one family under a name of your own, such as [evaluation.suites.gsm8k]."""

    environment: Annotated[SerializeAsAny[EnvironmentConfig], BeforeValidator(named_environment)]
    """Name of the family, such as "python_math", or its section with settings of its own."""
    tasks: Path | None = None
    """File or folder in the format of the family's public benchmarks; unset takes the family's own
    held-out tasks."""
    attempts: int = Field(default=1, ge=1, le=1000)
    """Attempts at each task: the largest k of pass@k and pass^k."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; 0 is greedy, which allows only one attempt."""
    limit: int | None = Field(default=None, ge=1)
    """Most tasks of the suite. The choice depends only on task ids, and a smaller limit chooses a
    subset of a larger one's."""
    episode: EpisodeConfig | None = None
    """Limits of its episodes; unset takes those of [episode]."""
    scaffold: Literal["tools", "answer"] = "tools"
    """"tools" offers the family's tools; "answer" offers none and wants only the answer."""

    @model_validator(mode="after")
    def _attempts_differ(self) -> Self:
        if self.attempts > 1 and not self.temperature:
            raise ValueError(
                f"attempts={self.attempts} at temperature 0 would all be the same attempt; "
                "set temperature above 0, or attempts = 1"
            )
        return self


class ContaminationConfig(Section):
    """Treatment of tasks whose question, entities or documents a policy was trained on."""

    contaminated: Literal["exclude", "refuse", "count"] = "exclude"
    """"exclude" leaves contaminated tasks out of every figure, "refuse" ends the command before it
    plays any task, "count" includes them and reports their number."""
    unknown: Literal["allow", "refuse"] = "allow"
    """Whether to evaluate a policy whose training data is not fully known."""
    run_words: int = Field(default=8, ge=3, le=50)
    """Length of the word runs that are searched for in training questions, for public tasks. One is
    contaminated if 70 % of its runs occur there, as in PaLM (arXiv:2204.02311, sec. 8)."""


class EvaluationConfig(Section):
    """Held-out comparison of the untrained, warm-started and trained policy."""

    samples_per_task: int = Field(default=4, ge=1)
    """Sampled answers per question, for pass@k; EM and F1 are of greedy answers."""
    sampled_questions: int = Field(default=500, ge=1)
    """Number of held-out questions that are also answered by sampling, for pass@k."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the samples for pass@k."""
    closed_book_questions: int = Field(default=500, ge=0, exclude_if=lambda it: it == 500)
    """Number of held-out questions that each policy also answers from memory, in one message and
    without the tools that look answers up (`search_qa`); 0 turns this off. A pretrained model knows
    many answers already, and only beside this figure does it show what RL added. It costs a
    fraction of an episode per question."""
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    """Number of bootstrap resamples for intervals."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals, 0.95 for 95 %."""
    max_lost_share: float = Field(default=0.01, ge=0, lt=1)
    """Largest share of a policy's episodes that may stay lost after `rollout.max_replays`; they
    count as wrong. The evaluation stops as soon as more are lost; one always may be."""
    kept_trajectories: int = Field(default=20, ge=0)
    """Number of the trained policy's trajectories that are kept for the report."""
    suites: dict[str, SuiteConfig] = Field(default={}, exclude_if=lambda it: not it)
    """Suites by name, such as [evaluation.suites.gsm8k]. The stage plays them besides the run's own
    held-out tasks, and `espalier evaluate --suite` takes their names."""
    contamination: ContaminationConfig = Field(
        default=ContaminationConfig(), exclude_if=lambda it: it == ContaminationConfig()
    )
    gold_checks: int = Field(default=50, ge=0, exclude_if=lambda it: it == 50)
    """Number of a suite's tasks whose gold answers `espalier evaluate` plays to check them; 0
    checks none."""

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> file of a suite that it names."""
        return {
            f"evaluation.suites.{name}.{key}": path
            for name, suite in self.suites.items()
            for key, path in {"tasks": suite.tasks, **suite.environment.external_files()}.items()
        }

    @field_validator("suites")
    @classmethod
    def _names_can_be_written(cls, suites: dict[str, SuiteConfig]) -> dict[str, SuiteConfig]:
        for name in suites:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r}: the name of a suite has at most 64 lower-case letters, digits, "
                    "'.', '_' and '-', and begins with a letter or digit"
                )
            if name == HELDOUT:
                raise ValueError(
                    f"{name!r} is the name of the run's own held-out tasks; take another"
                )
        return suites


class EvaluatedEndpointConfig(EndpointConfig):
    """A model for `espalier evaluate`, under a name of your own, such as [endpoints.small]."""

    max_tokens: int = Field(default=2048, ge=1)
    """Maximum number of tokens of one message."""
    key_variable: str = ""
    """Environment variable with the API key, if key_file is not set. There is no default, so that a
    key never reaches a server that it is not for."""

    @model_validator(mode="after")
    def _only_what_is_used_is_set(self) -> Self:
        if unused := self.model_fields_set & {
            "response_format", "temperature", "cache", "replay_only",
        }:  # fmt: skip
            raise ValueError(
                f"{', '.join(sorted(unused))}: not used by an evaluated endpoint; its temperature "
                "is the suite's, and finished attempts are kept in the output folder"
            )
        if self.key_variable and self.key_file:
            raise ValueError("key_variable and key_file exclude each other; keep one of them")
        if self.key_variable and not _VARIABLE.fullmatch(self.key_variable):
            # the message must not quote the value, which may be the key itself by mistake
            raise ValueError("key_variable is the NAME of an environment variable, not a key")
        return self
