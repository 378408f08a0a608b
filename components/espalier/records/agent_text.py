"""Texts of agent behaviour for continued pre-training; they are not episodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from espalier.records.message import Message
from espalier.records.task import read_records, write_records

TextKind = Literal["planning", "reasoning", "decision", "negative"]
"""Planning of a first action (FAS); reasoning over knowledge (FAS); choices and their outcome
(HAS); a call that must not be made (Agent-FLAN)."""


class AgentText(BaseModel, frozen=True, extra="forbid"):
    """One text: a prompt, and what follows it.

    A planning text ends with an action without a result; a decision continues to the outcome:

        prompt   user       Name the time zone used in Duaca.
        pieces   assistant  <think> time zone </think> <search> Duaca time zone </search>
    """

    text_id: str = Field(min_length=1)
    kind: TextKind
    style: str
    """Style of a question, outcome of a decision, or kind of a negative."""
    prompt: tuple[Message, ...] = Field(min_length=1)
    pieces: tuple[Message, ...] = Field(min_length=1)
    """What the policy writes (assistant) and reads (tool) after the prompt."""
    task_id: str = ""
    """Id of the task that it belongs to; empty if it has a question of its own."""
    sources: tuple[str, ...] = ()
    """Ids of its source documents."""

    @property
    def words(self) -> str:
        """Return all its text, in order."""
        return " ".join(message.content for message in (*self.prompt, *self.pieces))


def write_agent_texts(path: Path, texts: Iterable[AgentText]) -> int:
    """Write `texts` as JSON lines and return how many there were."""
    return write_records(path, texts)


def read_agent_texts(path: Path) -> list[AgentText]:
    """Read what `write_agent_texts` wrote; return nothing if there is no file.

    Raises:
        DataError: a line is no such text; the message names file and line.
    """
    return read_records(path, AgentText) if path.exists() else []
