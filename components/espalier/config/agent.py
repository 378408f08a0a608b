"""Profile section `agent`: a program of the user's that plays the tasks through the recorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from espalier.config.data import Section


class VerifiersConfig(Section):
    """A taskset of verifiers (v1), whose environment plays the tasks and rewards them."""

    python: Path
    """Interpreter of a virtual environment that has verifiers and the taskset's package."""
    taskset: str = Field(min_length=1)
    """Its id: the name of the installed package that exports it."""
    env: dict[str, JsonValue] = Field(default={})
    """Verifiers' own `[env]` block, as {agent = {harness = {id = "null"}, max_turns = 8}}; a
    runtime that it leaves out is "subprocess"."""
    address: str = Field(default="", pattern=r"^$|^(tcp|ipc)://.+")
    """An EnvServer on this machine, as "tcp://127.0.0.1:5000"; empty starts one."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """How long a server may take to answer first."""


class AgentConfig(Section):
    """An agent that plays every episode in the place of the built-in loop.

    It is started once for each attempt, reads its task and where the policy answers from its
    environment (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, ESPALIER_TASK), and ends with status 0. It
    asks in OpenAI's chat completions or responses, or in Anthropic's messages.
    """

    command: tuple[str, ...] = ()
    """Program and arguments, as ["python", "my_agent.py"]; empty plays the built-in loop."""
    verifiers: VerifiersConfig | None = None
    """A taskset of verifiers, in the place of a command: its EnvServer plays and rewards."""
    score: Literal["verifier", "posted"] = "verifier"
    """"verifier" judges the last thing that the policy answered as the family does; "posted" takes
    the reward that the agent posts."""
    edits: Literal["fail", "branch"] = "fail"
    """What becomes of an attempt in which the agent changed what the policy had written: it is
    lost, or goes on in a branch in which the changed message is read and not trained."""
    processes: int = Field(default=32, ge=1)
    """Agents that run side by side."""
    tasks_per_process: int = Field(default=1, ge=1)
    """Attempts that one process plays one after the other. Above 1 it reads a line of JSON for each
    from its input, with the variables that would be in its environment, and writes the line
    {"status": 0} when it is done: libraries that take seconds to import are then imported once."""
    deadline_s: float = Field(default=300.0, gt=0)
    """How long an attempt may take; then its program is ended, and the attempt is lost."""
    call_timeout_s: float = Field(default=120.0, gt=0)
    """How long one call may take, its wait for a row included."""
    max_calls: int = Field(default=256, ge=1)
    """Calls of one attempt; a further one is refused."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Largest body of a request; a larger one is refused with status 413."""
    variables: dict[str, str] = Field(default={})
    """Environment variables that the agent gets besides."""

    @property
    def plays(self) -> bool:
        """Whether an agent plays the episodes."""
        return bool(self.program)

    @property
    def program(self) -> tuple[str, ...]:
        """What plays, for digests and reports; empty where nothing does."""
        if self.verifiers is None:
            return self.command
        return ("verifiers", self.verifiers.taskset, json.dumps(self.verifiers.env))

    @property
    def told(self) -> str:
        """What plays, for messages."""
        if self.verifiers is None:
            return f"agent.command = {list(self.command)}"
        where = self.verifiers.address or "started here"
        return f"agent.verifiers (taskset {self.verifiers.taskset!r}, {where})"

    def external_files(self) -> dict[str, Path | None]:
        """The agent's own files by the profile key that names them."""
        return {
            f"agent.command[{place}]": Path(word)
            for place, word in enumerate(self.command)
            if place and Path(word).is_file()
        }

    @model_validator(mode="after")
    def _one_thing_plays(self) -> Self:
        if self.verifiers is None:
            return self
        if self.command:
            raise ValueError(
                "agent.command and agent.verifiers are both set, and only one can play; leave the "
                "other out"
            )
        if self.score != "posted":
            raise ValueError(
                'agent.verifiers rewards the attempts that it plays; set agent.score = "posted"'
            )
        return self

    @model_validator(mode="after")
    def _a_call_ends_within_its_attempt(self) -> Self:
        if self.call_timeout_s > self.deadline_s:
            raise ValueError(
                f"agent.call_timeout_s={self.call_timeout_s:g} exceeds agent.deadline_s="
                f"{self.deadline_s:g}; a call cannot outlast its attempt: lower the one or raise "
                "the other"
            )
        return self
