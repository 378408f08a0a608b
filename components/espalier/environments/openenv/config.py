"""Section `[environment]` of a profile whose tasks are played on an OpenEnv server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from espalier.config import EnvironmentConfig

_SCHEMES = ("http", "https", "ws", "wss")


class OpenEnvConfig(EnvironmentConfig):
    """A server, and how its episodes become tasks."""

    name: str = "openenv"
    url: str = "http://127.0.0.1:8000"
    """Its address; a session is a WebSocket at `/ws` below it."""
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
        return {"environment.demonstrations": self.demonstrations}
