"""The evaluation suite: held-out tasks and settings, under one digest.

Results with equal suite digests are comparable: the same questions over the same knowledge, with
the same tools, limits and verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from espalier.config import EvaluationConfig, Profile, family_code_digest
from espalier.environments import Family, family_of
from espalier.environments.mixins import LooksAnswersUp
from espalier.records import Task, json_digest

VIEW: Literal["full"] = "full"
"""View of held-out questions: all documents, including those hidden during training."""

_SAMPLING_SETTINGS = {"samples_per_task", "sampled_questions", "temperature"}
"""Settings that change answers, and so the digest, unlike those of intervals and examples."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Held-out tasks in the order of all results, with the settings that answers depend on."""

    tasks: Sequence[Task]
    config: EvaluationConfig
    environment: Mapping[str, object]
    knowledge: str
    """Content digest of the knowledge artifact."""
    family: Family[Any]
    """Family that made the tasks."""
    groups: Sequence[Mapping[str, str]] = ()
    """Name of a grouping -> group, for each task; for breakdowns of results, not in the digest."""

    @property
    def sampled_tasks(self) -> Sequence[Task]:
        """First tasks of the suite, also answered by sampling."""
        return self.tasks[: self.config.sampled_questions]

    @property
    def closed_book_tasks(self) -> Sequence[Task]:
        """The first tasks whose tools look answers up, which are also answered from memory."""
        looked_up = [
            task for task in self.tasks if isinstance(self.family.of(task), LooksAnswersUp)
        ]
        return looked_up[: self.config.closed_book_questions]

    def part(self, tasks: Sequence[Task]) -> Suite:
        """The suite of some of its tasks, answered once: neither by sampling nor from memory."""
        once = {"sampled_questions": 0, "closed_book_questions": 0}
        groups = [self.family.report_groups(task) for task in tasks]
        return replace(self, tasks=tasks, groups=groups, config=self.config.model_copy(update=once))

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
    """Make the suite of `profile` from the held-out tasks and the digest of the knowledge."""
    family = family_of(profile)
    # answers also depend on the episode's limits and the tools' settings
    environment = {
        "name": family.name,
        "view": VIEW,
        "episode": profile.episode.model_dump(mode="json"),
        **family.answer_settings(),
    }
    if code := family_code_digest(profile.environment):
        environment["code"] = code
    groups = [family.report_groups(task) for task in heldout]
    return Suite(heldout, profile.evaluation, environment, knowledge_content, family, groups)
