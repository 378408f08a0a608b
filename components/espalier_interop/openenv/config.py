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
    """Program and arguments, started in the folder of `files`; it must listen on `port` of the
    sandbox's loopback interface."""
    port: int = Field(default=8000, ge=1024, le=65535)
    """Port on which the program listens."""
    files: Path | None = None
    """Folder that is copied into the sandbox."""
    variables: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of the program. The messages it receives are a model's output, so give
    it no secret keys."""
    start_timeout_s: float = Field(default=30.0, gt=0, le=MOST_WAIT_S)
    """How long the program may take until it listens. It starts with the first action of an
    episode, within `rollout.tool_timeout_s`."""


class OpenEnvConfig(EnvironmentConfig):
    """A server, and how its episodes become tasks."""

    name: str = "openenv"
    url: str = "http://127.0.0.1:8000"
    """Address of the server; a session is a WebSocket at `/ws` below it."""
    server: ServerProgram | None = None
    """Instead of an address: a server for each episode, in a sandbox of the pool."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
    """Where `server` is started: on this machine, under podman, or in pods of a warm pool."""
    disk_mb: int = Field(default=64, ge=8, le=4096)
    """Disk space of a sandbox, for the unpacked files of the server."""
    actions: Literal["tools", "schema"] = "tools"
    """What the policy may do: call the tools that the server lists (its MCP environments), or a
    single tool `act` with the fields of the server's action schema."""
    answer_tool: str = "answer"
    """Tool that receives the policy's messages in its only text argument. If the server has no such
    tool, a message without a call ends the episode."""
    prompt: str = ""
    """Field of a reset's observation that holds the prompt, with dots for nested fields: text, or a
    list of messages. If empty, `prompt` is used if it exists, otherwise the whole observation."""
    result: str = ""
    """Field of a step's observation that the policy reads. If empty, `result` is used if it exists,
    otherwise the whole observation."""
    reset: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further arguments of every reset, besides `seed` and `split`."""
    rewards: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest sum of an episode's rewards; a sum outside ends the run with an error."""
    demonstrations: Path | None = None
    """JSON lines with a teacher's actions, by seed; see the README. Without it, a class derived
    from this family must demonstrate."""
    max_result_characters: int = Field(default=4000, ge=80)
    """Longer results are cut in their middle."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long a connection, a reset or a step may take; a server that is full is retried within
    it."""
    sessions: int = Field(default=16, ge=1)
    """Number of sessions open at the same time while tasks are read."""

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
            raise ValueError(f"url={self.url!r} is not an address; write it as http://host:8000")
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
        """Return demonstrations and server files, by the key of the profile that names them."""
        files = self.server.files if self.server is not None else None
        return {
            "environment.demonstrations": self.demonstrations,
            "environment.server.files": files,
        }

    @property
    def where(self) -> str:
        """The server's name in messages."""
        return self.url if self.server is None else f"environment.server {self.server.command[0]}"
