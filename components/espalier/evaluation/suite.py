"""What is asked: the held-out tasks and the settings, under one digest.

Two results may be compared where their suite digests are equal: the same questions, over the same
knowledge, with the same search tool and the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from espalier.artifacts import json_digest
from espalier.config import EvaluationConfig, Profile, PythonMathConfig, SearchQAConfig
from espalier.tasks import Task

VIEW: Literal["full"] = "full"
"""Held-out questions are answered over every document: nothing is hidden any more."""

_SAMPLING_SETTINGS = {"samples_per_task", "sampled_questions", "temperature"}
"""Settings of evaluation that change an answer; intervals and kept episodes do not."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks in the order in which they are asked."""

    tasks: Sequence[Task]
    config: EvaluationConfig
    environment: Mapping[str, object]
    knowledge: str
    """Content digest of the knowledge artifact."""

    @property
    def sampled_tasks(self) -> Sequence[Task]:
        """The first of them, which are also answered by sampling."""
        return self.tasks[: self.config.sampled_questions]

    @property
    def digest(self) -> str:
        """Digest of tasks, knowledge and settings."""
        tasks = [task.model_dump(mode="json") for task in self.tasks]
        return json_digest({"tasks": tasks, **self._settings()})

    def described(self) -> dict[str, object]:
        """The content of suite.json."""
        task_ids = [task.task_id for task in self.tasks]
        return {"digest": self.digest, "n": len(task_ids), **self._settings(), "task_ids": task_ids}

    def _settings(self) -> dict[str, object]:
        return {
            "knowledge": self.knowledge,
            "environment": dict(self.environment),
            "sampling": self.config.model_dump(mode="json", include=_SAMPLING_SETTINGS),
        }


def make_suite(profile: Profile, heldout: Sequence[Task], knowledge_content: str) -> Suite:
    """The suite that `profile` asks, out of the held-out tasks and the knowledge searched."""
    return Suite(heldout, profile.evaluation, _environment(profile), knowledge_content)


def _environment(profile: Profile) -> dict[str, object]:
    """What an answer may depend on, beside the question: the limits, and the tool's settings."""
    name, episode = profile.environment.name, profile.episode.model_dump(mode="json")
    match profile.environment:
        case SearchQAConfig():
            search = profile.search.model_dump(mode="json")
            return {"name": name, "view": VIEW, "episode": episode, "search": search}
        case PythonMathConfig() as config:
            elsewhere = {"name", "problems", "heldout_problems", "sandbox"}
            python = config.model_dump(mode="json", exclude=elsewhere)
            return {"name": name, "episode": episode, "python": python}
