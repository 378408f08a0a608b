"""Section `[environment]` of a profile whose tasks are played on an OpenEnv server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from espalier.config import EnvironmentConfig, LocalSandboxConfig, SandboxConfig
from espalier.config.data import Section
from espalier.environments.server_sandbox import MOST_WAIT_S, require_waits

_SCHEMES = ("http", "https", "ws", "wss")


class ServerProgram(Section):
    """A server of yours that is started in a sandbox for each episode."""

    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments, started in the folder of `files`; it listens on `port`, of the
    sandbox's own loopback."""
    port: int = Field(default=8000, ge=1024, le=65535)
    """Where it listens."""
    files: Path | None = None
    """Folder that is copied into the sandbox."""
    variables: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of the program. What it is sent is a model's output: give it no key."""
    start_timeout_s: float = Field(default=30.0, gt=0, le=MOST_WAIT_S)
    """How long it may take to listen; it starts with the first action of an episode, within
    `rollout.tool_timeout_s`."""


class OpenEnvConfig(EnvironmentConfig):
    """A server, and how its episodes become tasks."""

    name: str = "openenv"
    url: str = "http://127.0.0.1:8000"
    """Its address; a session is a WebSocket at `/ws` below it."""
    server: ServerProgram | None = None
    """In the place of an address: a server for each episode, in a sandbox of the pool."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
    """Where `server` is started: on this machine, under podman, or in pods of a warm pool."""
    disk_mb: int = Field(default=64, ge=8, le=4096)
    """Of a sandbox: what the server's files need when unpacked."""
    actions: Literal["tools", "schema"] = "tools"
    """What the policy may do: call the tools that the server lists (its MCP environments), or one
    tool `act` with the fields of the server's action schema."""
    answer_tool: str = "answer"
    """Tool that what the policy says is given to, under its one text argument; where the server
    has none, a message without a call ends the episode."""
    prompt: str = ""
    """Field of a reset's observation that holds the prompt, with dots for nested ones: text, or a
    list of messages. Empty takes `prompt` where there is one, and else the whole observation."""
    result: str = ""
    """Field of a step's observation that the policy reads. Empty takes `result` where there is
    one, and else the whole observation."""
    reset: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further arguments of every reset, beside `seed` and `split`."""
    rewards: tuple[float, float] = (0.0, 1.0)
    """Least and most that the rewards of an episode add up to; others end the run."""
    demonstrations: Path | None = None
    """JSON lines with the actions of a teacher, by seed; see the README. Without it, a class
    derived from this family demonstrates."""
    max_result_characters: int = Field(default=4000, ge=80)
    """More of a result is cut out of its middle."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long a connection, a reset or a step may take; a server that is full is asked again."""
    sessions: int = Field(default=16, ge=1)
    """Sessions that are open at one time while tasks are read."""

    @model_validator(mode="after")
    def _it_is_a_program_or_an_address(self) -> Self:
        if self.server is not None and "url" in self.model_fields_set:
            raise ValueError("a server has either an address (url) or a program (server)")
        if self.server is not None:
            require_waits(timeout_s=self.timeout_s)
        return self

    @model_validator(mode="after")
    def _the_address_can_be_connected_to(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError(f"url={self.url!r} is no address; write it as http://host:8000")
        if parts.username or parts.password:
            raise ValueError(
                "url must not carry a user or password, since addresses are logged: put the key "
                "into the variable OPENENV_API_KEY"
            )
        low, high = self.rewards
        if not low < high:
            raise ValueError(f"rewards={self.rewards}: the first is the least, the second the most")
        return self

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        files = self.server.files if self.server is not None else None
        return {
            "environment.demonstrations": self.demonstrations,
            "environment.server.files": files,
        }

    @property
    def where(self) -> str:
        """The server, for messages."""
        return self.url if self.server is None else f"environment.server {self.server.command[0]}"
