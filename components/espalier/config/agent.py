"""Profile section `agent`: the user's own program, which plays the tasks through the recorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from espalier.config.data import Section


class VerifiersConfig(Section):
    """A taskset of verifiers (v1), whose environment plays tasks and rewards attempts."""

    python: Path
    """Python interpreter of a virtual environment with verifiers and the taskset's package."""
    taskset: str = Field(min_length=1)
    """Id of the taskset: the name of the installed package that exports it."""
    env: dict[str, JsonValue] = Field(default={})
    """Verifiers' own `[env]` block, such as {agent = {harness = {id = "null"}, max_turns = 8}}; the
    default of its runtime is "subprocess"."""
    address: str = Field(default="", pattern=r"^$|^(tcp|ipc)://.+")
    """Address of an EnvServer on this machine, such as "tcp://127.0.0.1:5000"; empty starts one."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds until a starting server has to answer."""


class AgentConfig(Section):
    """An agent program that plays every episode instead of the built-in loop.

    It is started once for each attempt and ends with status 0. Environment variables name its task
    (ESPALIER_TASK) and the policy's address (OPENAI_BASE_URL, ANTHROPIC_BASE_URL), which speaks
    OpenAI's chat completions and responses, and Anthropic's messages.
    """

    command: tuple[str, ...] = ()
    """Program and arguments, such as ["python", "my_agent.py"]; empty uses the built-in loop."""
    verifiers: VerifiersConfig | None = None
    """A taskset of verifiers instead of a command: its EnvServer plays and rewards."""
    score: Literal["verifier", "posted"] = "verifier"
    """"verifier" judges the policy's last answer as the family does; "posted" takes the reward that
    the agent posts."""
    edits: Literal["fail", "branch"] = "fail"
    """Attempts in which the agent changed a message of the policy: "fail" loses them; "branch"
    continues in a branch that reads the changed message and does not train on it."""
    processes: int = Field(default=32, ge=1)
    """Number of agents that run at the same time."""
    tasks_per_process: int = Field(default=1, ge=1)
    """Attempts that one process plays, one after the other, so that slow imports happen once. Above
    1 the program reads a line of JSON for each attempt from its input, with the variables that
    would otherwise be in its environment, and at its end writes the line {"attempt":
    ESPALIER_ATTEMPT, "status": 0}, with that variable's value."""
    deadline_s: float = Field(default=300.0, gt=0)
    """Seconds that an attempt may take; then its program is ended, and the attempt is lost."""
    call_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that one call may take, including its wait for a row."""
    max_calls: int = Field(default=256, ge=1)
    """Most calls of one attempt; further ones are refused."""
    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """Largest body of a request; a larger one is refused with status 413."""
    variables: dict[str, str] = Field(default={})
    """Further environment variables of the agent."""

    @property
    def plays(self) -> bool:
        """Whether an agent plays the episodes."""
        return bool(self.program)

    @property
    def program(self) -> tuple[str, ...]:
        """The agent's program, for digests and reports; empty for the built-in loop."""
        if self.verifiers is None:
            return self.command
        return ("verifiers", self.verifiers.taskset, json.dumps(self.verifiers.env))

    @property
    def told(self) -> str:
        """The setting that names the agent, for messages."""
        if self.verifiers is None:
            return f"agent.command = {list(self.command)}"
        where = self.verifiers.address or "started here"
        return f"agent.verifiers (taskset {self.verifiers.taskset!r}, {where})"

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> file of the agent that it names."""
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
                "agent.command and agent.verifiers are both set, but only one can play; leave one "
                "out"
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
                f"{self.deadline_s:g}, so calls would outlast their attempts: lower the one or "
                "raise the other"
            )
        return self
