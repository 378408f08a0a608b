"""A memory of solved training tasks: worked solutions of similar tasks precede a question.

ExpeL (Zhao et al. 2024, arXiv:2308.10144) recalls successful trajectories by similarity of tasks,
and Voyager (Wang et al. 2023, arXiv:2305.16291) recalls skills. This memory consists of the
demonstrations that validation accepted, so it is the same in every stage while a policy trains.

    solved : what is the country of turin ? search turin country ; italy
    what is the currency of the country of lyon ?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from espalier.config import EpisodeConfig, Profile
from espalier.dialects.dialect import Dialect
from espalier.environments.family import Family, family_of
from espalier.environments.text_index import TextIndex
from espalier.records import DataError, Message, Task, read_tasks
from espalier.records.folding import folded_name
from espalier.records.knowledge import Document
from espalier.records.trajectory import Trajectory, read_trajectories

if TYPE_CHECKING:
    from espalier.environments.contract import Recalled

_CACHED_TASKS = 65_536
_EXCLUDED = 16
"""How many solutions of equal questions are skipped, at most."""


class _Solved(NamedTuple):
    """A solved training task, and its solution in one line."""

    task_id: str
    family: str
    question: str
    key: str
    """The task's `Family.question_key`; empty if rewordings are unknown."""
    text: str


class SkillMemory:
    """Worked solutions of training tasks, found by BM25 over their questions."""

    def __init__(self, solved: Iterable[_Solved], family: Family[Any]) -> None:
        self._solved = list(solved)
        self._family = family
        documents = [Document(one.task_id, "", (one.question,), "train") for one in self._solved]
        self._index = TextIndex.build(documents) if documents else None
        self._found = lru_cache(maxsize=_CACHED_TASKS)(self._ranked)

    @classmethod
    def of(
        cls,
        tasks: Mapping[str, Task],
        demonstrations: Iterable[Trajectory],
        family: Family[Any],
    ) -> Self:
        """Build a memory from demonstrations.

        Args:
            tasks: id -> task.
            demonstrations: a teacher's trajectories; wrong ones are left out.
            family: of the tasks.

        Raises:
            DataError: a demonstration does not belong to a training task in `tasks`.
        """
        return cls(
            [
                _solved(_training_task(tasks, one.task_id), one, family)
                for one in demonstrations
                if one.is_right
            ],
            family,
        )

    @classmethod
    def load(cls, accepted: Path, family: Family[Any]) -> Self:
        """Build the memory from an artifact of `validate`.

        Raises:
            ArtifactError: the artifact has no readable trajectories.
            DataError: a demonstration does not belong to a training task.
        """
        tasks = {task.task_id: task for task in read_tasks(accepted / "tasks" / "train.jsonl")}
        return cls.of(tasks, read_trajectories(accepted / "trajectories.parquet"), family)

    def recalled(self, task: Task, count: int) -> tuple[str, ...]:
        """Return up to `count` solutions of other questions of the family, most similar first.

        The task's own solution is never among them, nor that of a rewording.
        """
        key = self._family.question_key(task)
        return self._found(_Solved(task.task_id, task.environment, _asked(task), key, ""), count)

    def _ranked(self, asked: _Solved, count: int) -> tuple[str, ...]:
        if self._index is None:
            return ()
        ranked = self._index.rank(asked.question, count + _EXCLUDED)
        found = [self._solved[entry.place] for entry in ranked]
        others = [
            one.text
            for one in found
            if one.family == asked.family
            and one.task_id != asked.task_id
            and folded_name(one.question) != folded_name(asked.question)
            and not (asked.key and one.key == asked.key)
        ]
        return tuple(others[:count])


def remembering(profile: Profile, accepted: Path) -> Family[Any]:
    """Return the profile's family; with `[episode.memory]` its environments have a memory.

    Args:
        profile: of the run.
        accepted: artifact of `validate`, whose demonstrations form the memory.
    """
    family = family_of(profile)
    if profile.episode.memory is not None:
        family.memory = SkillMemory.load(accepted, family)
    return family


def recalled_prompt(
    prompt: tuple[Message, ...],
    task: Task,
    memory: Recalled | None,
    dialect: Dialect,
    limits: EpisodeConfig,
) -> tuple[Message, ...]:
    """Return the prompt with as many recalled solutions before its last message as fit.

    Args:
        prompt: the environment's prompt.
        task: the task of the episode.
        memory: the memory; None recalls nothing.
        dialect: counts tokens.
        limits: `memory` limits solutions and tokens; a turn must still fit after them.
    """
    config = limits.memory
    if memory is None or config is None:
        return prompt
    plain = len(dialect.prompt_ids(prompt))
    most = min(plain + config.max_tokens, limits.max_tokens - limits.max_turn_tokens)
    solutions = memory.recalled(task, config.recalled)
    for count in range(len(solutions), 0, -1):
        before = "".join(f"{text}\n" for text in solutions[:count])
        last = prompt[-1].model_copy(update={"content": before + prompt[-1].content})
        shown = (*prompt[:-1], last)
        if len(dialect.prompt_ids(shown)) <= most:
            return shown
    return prompt


def _training_task(tasks: Mapping[str, Task], task_id: str) -> Task:
    task = tasks.get(task_id)
    if task is None or task.metadata.split != "train":
        raise DataError(
            f"episode.memory: the demonstration of task {task_id} is of no training task; what is "
            "judged must not be remembered. Run validate again, or leave the section out"
        )
    return task


def _solved(task: Task, demonstration: Trajectory, family: Family[Any]) -> _Solved:
    question = _asked(task)
    steps: list[str] = []  # each call, or the message's text, in a few words
    for message in demonstration.messages[len(task.prompt) :]:
        if message.role != "assistant":
            continue
        for call in message.tool_calls:
            values = [_line(str(value)) for value in call.arguments.values()]
            steps.append(" ".join((call.name, *values)))
        if not message.tool_calls:
            steps.append(_line(message.content))
    text = f"solved : {question} {' ; '.join(steps)}"
    return _Solved(task.task_id, task.environment, question, family.question_key(task), text)


def _asked(task: Task) -> str:
    """Return the question, without the page or data below it."""
    return _line(task.question.partition("\n")[0])


def _line(text: str) -> str:
    return " ".join(text.split())
