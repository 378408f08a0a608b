"""Tasks of a verifiers taskset, for families that demonstrate how a task is solved."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from espalier.config import EnvironmentConfig, Profile, VerifiersConfig
from espalier.environments.family import SimpleFamily, dealt_split, make_task
from espalier.records import (
    DataError,
    Message,
    ProfileError,
    Split,
    Task,
)
from espalier.records.message import JsonObject
from espalier_interop.verifiers.process import bridge_command, bridge_variables, last_line

_SPARE = 1.2
"""Factor on the number of tasks to read, as shares of splits are only met on average."""


class TasksetConfig(EnvironmentConfig):
    """The family's section; `[agent.verifiers]` names the taskset."""

    name: str = "verifiers"
    most_tasks: int = Field(default=100_000, ge=1)
    """Most tasks that are read from the taskset, starting with its first."""


class _Said(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    role: str
    content: str


class _Data(BaseModel):
    """The parts of a TaskData that are used; the server is sent all of it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt: str | tuple[_Said, ...] = Field(min_length=1)
    system_prompt: str | None = None


class TasksetFamily(SimpleFamily[TasksetConfig]):
    """A taskset's tasks, assigned to splits by `split_key`.

    A derived class defines how a task is demonstrated (`tools`, `demonstrate`, and a `verify` for
    demonstrations); in rollouts the taskset's EnvServer plays and rewards.
    """

    name = "verifiers"
    config: ClassVar[type[EnvironmentConfig]] = TasksetConfig

    @classmethod
    def check(cls, profile: Profile) -> None:
        """Check that the profile names a taskset."""
        if profile.agent.verifiers is None:
            raise ValueError(
                f'environment.name = "{profile.environment.name}" has the tasks of a taskset of '
                "verifiers; name it in [agent.verifiers]"
            )

    def has_text_answer(self, task: Task) -> bool:
        """Return False: the server knows the right answer, and the task does not."""
        del task
        return False

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return the first `count` tasks assigned to a split."""
        return self._dealt[split][:count]

    def split_key(self, data: JsonObject, asked: str) -> str:
        """Return a text that is equal for tasks that must be in the same split: the prompt.

        Args:
            data: the task's TaskData.
            asked: roles and texts of the prompt.
        """
        del data
        return asked

    @property
    def _server(self) -> VerifiersConfig:
        server = self.profile.agent.verifiers
        assert server is not None, "the profile was checked"
        return server

    @cached_property
    def _dealt(self) -> dict[Split, list[Task]]:
        splits, wanted = self.profile.splits, self.profile.synthesis
        read = max(
            wanted.heldout_tasks / splits.heldout_share,
            wanted.dev_tasks / splits.dev_share,
            wanted.train_tasks / (1 - splits.heldout_share - splits.dev_share),
        )
        found: dict[Split, list[Task]] = {"train": [], "dev": [], "heldout": []}
        taken: set[str] = set()
        for place, line in enumerate(self._read(min(self.settings.most_tasks, int(_SPARE * read)))):
            task = self._task(place, line)
            if task.task_id not in taken:
                taken.add(task.task_id)
                found[task.metadata.split].append(task)
        return found

    def _read(self, count: int) -> list[bytes]:
        server = self._server
        agent = self.profile.agent
        command = bridge_command(agent, {"tasks": count})
        try:
            ended = subprocess.run(
                command,
                env=bridge_variables(agent),
                capture_output=True,
                timeout=server.start_timeout_s,
            )
        except OSError as error:
            raise ProfileError(f"agent.verifiers.python: cannot be started ({error})") from error
        except subprocess.TimeoutExpired as error:
            raise ProfileError(
                f"agent.verifiers: {server.taskset!r} gave no {count} tasks within "
                f"{server.start_timeout_s:g} s; lower environment.most_tasks, or raise "
                "agent.verifiers.start_timeout_s"
            ) from error
        if ended.returncode:
            raise ProfileError(
                f"agent.verifiers: {server.taskset!r} has no tasks to read: "
                f"{last_line(ended.stderr)}"
            )
        return ended.stdout.splitlines()

    def _task(self, place: int, line: bytes) -> Task:
        where = f"{self._server.taskset}, task {place}"
        try:
            value = from_json(line, allow_inf_nan=False)
            data = _Data.model_validate(value)
            told: list[dict[str, str]]
            if isinstance(data.prompt, str):
                told = [{"role": "user", "content": data.prompt}]
            else:
                told = [one.model_dump() for one in data.prompt]
            if data.system_prompt:
                told.insert(0, {"role": "system", "content": data.system_prompt})
            prompt = tuple(Message.model_validate(one) for one in told)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise DataError(f"{where}: {key}: {first['msg']}; only texts can be played") from error
        except ValueError as error:
            raise DataError(f"{where}: is not JSON ({error})") from error
        asked = json.dumps([[one.role, one.content] for one in prompt])
        split = dealt_split(self.split_key(value, asked), self.profile.splits)
        return make_task(
            self.name,
            prompt,
            gold=(f"task {place}",),
            split=split,
            source=self._server.taskset,
            key=asked,
            kind="server",  # only the server knows the right answer
            arguments={"task_data": value},
            metadata={"extra": {"query": asked}},
        )
