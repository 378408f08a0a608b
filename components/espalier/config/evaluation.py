"""Profile sections of evaluation: the run's own held-out tasks, suites beside it, endpoints."""

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
    """Tasks of one family by a name of your own, as [evaluation.suites.gsm8k]."""

    environment: Annotated[SerializeAsAny[EnvironmentConfig], BeforeValidator(named_environment)]
    """Name of the family, as "python_math", or its section with settings of its own."""
    tasks: Path | None = None
    """File or folder in the format of the family's public benchmarks; unset takes the family's own
    held-out tasks."""
    attempts: int = Field(default=1, ge=1, le=1000)
    """Attempts at each task: k of pass@k and pass^k."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature; 0 is greedy, and allows one attempt alone."""
    limit: int | None = Field(default=None, ge=1)
    """Tasks that are asked at most; which they are depends on their ids alone, and those of a
    smaller limit are among those of a larger one."""
    episode: EpisodeConfig | None = None
    """Limits of its episodes; unset takes those of [episode]."""
    scaffold: Literal["tools", "answer"] = "tools"
    """"tools" offers the family's tools; "answer" offers none, and asks for the answer alone."""

    @model_validator(mode="after")
    def _attempts_differ(self) -> Self:
        if self.attempts > 1 and not self.temperature:
            raise ValueError(
                f"attempts={self.attempts} at temperature 0 are one attempt {self.attempts} times; "
                "set temperature above 0, or attempts = 1"
            )
        return self


class ContaminationConfig(Section):
    """What becomes of tasks whose question, entities or documents a policy was trained on."""

    contaminated: Literal["exclude", "refuse", "count"] = "exclude"
    """"exclude" leaves them out of every figure, "refuse" ends the command before anything is
    asked, "count" judges on them too, and says how many there are."""
    unknown: Literal["allow", "refuse"] = "allow"
    """Whether a policy is judged of which it cannot be said what it was trained on."""
    run_words: int = Field(default=8, ge=3, le=50)
    """Words in a row that are looked for in training questions, for tasks of a public file."""
    run_share: float = Field(default=0.7, gt=0, le=1)
    """Share of a question's runs of words that training questions must hold for it to count as
    contaminated. Runs of 8 and a share of 0.7 are those of PaLM (arXiv:2204.02311, sec. 8)."""


class EvaluationConfig(Section):
    """The held-out comparison of untrained, warm-started and trained policy."""

    samples_per_task: int = Field(default=4, ge=1)
    """Sampled answers a question for pass@k; EM and F1 are greedy."""
    sampled_questions: int = Field(default=500, ge=1)
    """Held-out questions that are answered by sampling, for pass@k."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the samples for pass@k."""
    closed_book_questions: int = Field(default=500, ge=0, exclude_if=lambda it: it == 500)
    """Held-out questions that each policy also answers from memory, in one message and without the
    tools that look answers up (`search_qa`); 0 asks none. A pretrained model knows many answers,
    and what RL adds to knowing them shows only beside that. On for every policy: a message is a
    fraction of an episode, and one that knows nothing says so."""
    bootstrap_resamples: int = Field(default=10_000, ge=100)
    """Resamples from which intervals are taken."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the intervals, 0.95 for 95 %."""
    max_lost_share: float = Field(default=0.01, ge=0, lt=1)
    """Largest share of a policy's episodes that may stay lost after `rollout.max_replays`: they
    count as wrong. Beyond it the evaluation stops, as soon as that is certain; one episode is
    always allowed."""
    kept_trajectories: int = Field(default=20, ge=0)
    """Trajectories of the trained policy that are kept for the report."""
    suites: dict[str, SuiteConfig] = Field(default={}, exclude_if=lambda it: not it)
    """Suites by name, as [evaluation.suites.gsm8k]: the stage asks them beside the run's own
    held-out tasks, and `espalier evaluate --suite` by their names."""
    contamination: ContaminationConfig = Field(
        default=ContaminationConfig(), exclude_if=lambda it: it == ContaminationConfig()
    )
    gold_checks: int = Field(default=50, ge=0, exclude_if=lambda it: it == 50)
    """Tasks of a suite whose gold answers are played by `espalier evaluate` before its report; 0
    checks none."""

    def external_files(self) -> dict[str, Path | None]:
        """The files of the suites by the profile keys that name them."""
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
                    f"{name!r}: a suite is named by small letters, digits, '.', '_' and '-', 64 at "
                    "most, the first a letter or digit"
                )
            if name == HELDOUT:
                raise ValueError(
                    f"{name!r} is the name of the run's own held-out tasks; take another"
                )
        return suites


class EvaluatedEndpointConfig(EndpointConfig):
    """A model that `espalier evaluate` may judge by a name of your own, as [endpoints.small]."""

    max_tokens: int = Field(default=2048, ge=1)
    """Maximum number of tokens of one message."""
    key_variable: str = ""
    """Environment variable that holds the API key, where key_file is not set. None is read unless
    it is named: a key must not reach a server that it is not for."""

    @model_validator(mode="after")
    def _only_what_is_used_is_set(self) -> Self:
        if unused := self.model_fields_set & {
            "response_format", "temperature", "cache", "replay_only",
        }:  # fmt: skip
            raise ValueError(
                f"{', '.join(sorted(unused))}: an endpoint that is judged has none; its "
                "temperature is the suite's, and finished attempts are kept in the output folder"
            )
        if self.key_variable and self.key_file:
            raise ValueError("key_variable and key_file exclude each other; keep one of them")
        if self.key_variable and not _VARIABLE.fullmatch(self.key_variable):
            # it may be the key itself, by mistake: not repeated
            raise ValueError("key_variable is the NAME of an environment variable, and no key")
        return self
