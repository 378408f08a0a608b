"""The command and variables of a `bridge`, and the error of one that failed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from espalier.config import AgentConfig
from espalier.records import ProfileError
from espalier.records.message import JsonObject
from espalier_interop.verifiers import bridge

MAX_LINE_BYTES = bridge.MAX_LINE_BYTES
_KEPT = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""Variables of this process that a bridge inherits; our keys and addresses are not among them."""


def bridge_command(agent: AgentConfig, asked: Mapping[str, object]) -> list[str]:
    """Return the command of a bridge for the agent's taskset.

    Args:
        agent: settings that name a taskset.
        asked: further entries of its argument.

    Raises:
        ProfileError: the interpreter does not exist.
    """
    server = agent.verifiers
    assert server is not None, "the caller has checked that a taskset is named"
    if not server.python.is_file():
        raise ProfileError(
            f"agent.verifiers.python = {server.python}: no such interpreter. Make a virtual "
            "environment with verifiers and the taskset's package, and name its bin/python"
        )
    config: JsonObject = {"taskset": server.taskset, "env": server.env}
    return [str(server.python), "-P", bridge.__file__, json.dumps({**config, **asked})]


def bridge_variables(agent: AgentConfig) -> dict[str, str]:
    """Return the environment variables of a bridge."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | agent.variables


def last_line(said: bytes) -> str:
    """Return the last line of a program's output, in which a bridge says why it ended."""
    lines = said.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")
