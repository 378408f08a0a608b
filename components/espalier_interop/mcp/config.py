"""Section `[environment]` of a profile whose tools are those of MCP servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from espalier.config import EnvironmentConfig, LocalSandboxConfig, SandboxConfig
from espalier.config.data import Section
from espalier.environments.server_sandbox import require_waits

_SERVER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class ServerConfig(Section):
    """One server: a program that is started in the episode's sandbox, or an address."""

    command: tuple[str, ...] = ()
    """Program and arguments, which speak MCP over standard input and output. It is started once per
    episode, in a sandbox, in the folder of `files`."""
    files: Path | None = None
    """Folder of the program, which is copied into the sandbox."""
    variables: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of the program. The calls it receives are a model's output, so give it
    no secret keys."""
    url: str = ""
    """Address of a server that you run (streamable HTTP), instead of `command`."""
    key_variable: str = ""
    """Environment variable whose value is sent to `url` as a bearer token; empty sends none."""
    tools: tuple[str, ...] = ()
    """Names of the listed tools that are offered to the policy; empty offers all of them."""
    prefix: str = ""
    """Prefix of its tools' names, for two servers with equally named tools."""

    @model_validator(mode="after")
    def _it_is_a_program_or_an_address(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        if self.url:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"url={self.url!r} is not an address; write http://host:8000/mcp")
            if parts.username or parts.password:
                raise ValueError(
                    "url must not carry a user or password, since addresses are logged: name the "
                    "variable of a key by key_variable"
                )
            if self.files or self.variables:
                raise ValueError("files and variables are those of a command; a url has none")
        elif self.key_variable:
            raise ValueError("key_variable is sent to a url; a command has none")
        return self


class McpConfig(EnvironmentConfig):
    """Servers, and a file of tasks that are solved with their tools."""

    name: str = "mcp"
    tasks: Path | None = None
    """JSON lines: `question`, `answer` or `checks`, and a teacher's `actions`; see the README."""
    servers: dict[str, ServerConfig] = Field(default_factory=dict[str, ServerConfig])
    """Servers by names of your choice."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """How long a server may take to start, and to list its tools; at most 55 s in a sandbox."""
    call_timeout_s: float = Field(default=10.0, gt=0)
    """How long a call may take; after that the policy reads that there was no answer, and the
    episode goes on. At most 55 s for a server in a sandbox."""
    max_result_characters: int = Field(default=4000, ge=80)
    """Longer results are cut in their middle."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
    disk_mb: int = Field(default=64, ge=8, le=4096)
    """Disk space of a sandbox, for the unpacked files of its servers."""

    @model_validator(mode="after")
    def _names_can_be_folders(self) -> Self:
        for name in self.servers:
            if not _SERVER_NAME.fullmatch(name):
                raise ValueError(
                    f"servers.{name}: the name of a server is small letters, digits and _"
                )
        return self

    @model_validator(mode="after")
    def _a_sandbox_waits_that_long(self) -> Self:
        if self.programs:
            require_waits(start_timeout_s=self.start_timeout_s, call_timeout_s=self.call_timeout_s)
        return self

    @property
    def programs(self) -> dict[str, ServerConfig]:
        """The servers that are started in sandboxes."""
        return {name: server for name, server in self.servers.items() if server.command}

    def external_files(self) -> dict[str, Path | None]:
        """Return the files of tasks and servers, by the key of the profile that names them."""
        files = {
            f"environment.servers.{name}.files": one.files for name, one in self.programs.items()
        }
        return {"environment.tasks": self.tasks, **files}
