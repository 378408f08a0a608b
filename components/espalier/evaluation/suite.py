"""What is asked: the held-out tasks and the settings, under one digest.

Two results may be compared where their suite digests are equal: the same questions, over the same
knowledge, with the same search tool and the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from espalier.config import EvaluationConfig, Profile
from espalier.environments import family_of
from espalier.records import Task, json_digest

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
    groups: Sequence[Mapping[str, str]] = ()
    """Of each task: name of a grouping -> group, as results are broken down; not in the digest."""

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
    family = family_of(profile)
    # what an answer may depend on, beside the question: the limits, and the tools' settings
    environment = {
        "name": family.name,
        "view": VIEW,
        "episode": profile.episode.model_dump(mode="json"),
        **family.answer_settings(),
    }
    groups = [family.report_groups(task) for task in heldout]
    return Suite(heldout, profile.evaluation, environment, knowledge_content, groups)
