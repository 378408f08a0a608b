"""A task: what is asked, where it is played, and how an answer is verified."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Message(BaseModel, frozen=True, extra="forbid"):
    """One chat message in the OpenAI shape."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Verifier(BaseModel, frozen=True, extra="forbid"):
    """A deterministic check against the gold answer."""

    kind: Literal["exact_match", "math_equivalence", "execution"] = "exact_match"
    """"execution" runs what the task's arguments and the answer say, in the environment."""
    gold: tuple[str, ...] = Field(min_length=1)
    """Accepted answers; the first is the canonical one."""


class TaskMetadata(BaseModel, frozen=True, extra="forbid"):
    """What reports group by, and what the split checks read."""

    family: str
    """chain, intersection, union, or the name of a user's own set."""
    split: Literal["train", "dev", "heldout"]
    hops: int = Field(ge=1)
    """Longest path of projections from the target to a constant."""
    source: str
    difficulty: float | None = None
    query: str = ""
    """Canonical text of the formal query; equal queries are the same question."""
    signature: str = ""
    """The query's relations without its constants, e.g. `currency(country(C))`."""
    entities: tuple[str, ...] = ()
    """Names of every entity on the chain, the answer included."""
    evidence: tuple[str, ...] = ()
    """Document ids in the order in which a solver needs them."""


class Task(BaseModel, frozen=True, extra="forbid"):
    """Prompt, environment, verifier, metadata."""

    task_id: str = Field(min_length=1)
    prompt: tuple[Message, ...] = Field(min_length=1)
    environment: str = "search_qa"
    arguments: dict[str, str] = Field(default_factory=dict)
    """Arguments of the environment; `index` names the view that is searched."""
    verifier: Verifier
    metadata: TaskMetadata

    @property
    def question(self) -> str:
        """The user's last message."""
        return self.prompt[-1].content
