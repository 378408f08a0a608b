"""Settings of function calling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.config import EnvironmentConfig
from espalier.config.data import EachOnce, Section

RequestKind = Literal[
    "single", "multiple", "parallel", "parallel_multiple", "none", "conversation"
]  # fmt: skip


class ApisConfig(Section):
    """The functions that are made up for training, and what is asked of them."""

    kinds: EachOnce[RequestKind] = (
        "single", "multiple", "parallel", "parallel_multiple", "none",
    )  # fmt: skip
    """Kinds of requests, in equal shares: one function is offered and called, one of several, one
    twice, two of several, or none fits; "conversation" is turns of a user over the services."""
    offered: int = Field(default=3, ge=2, le=8)
    """Functions that a request with a choice offers; tools that a conversation offers beside those
    that it needs."""
    max_parameters: int = Field(default=3, ge=1, le=5)
    """Of a function, those that may be left out included."""
    seed: int = 0
    """Of requests: the same for every run that compares with another."""


class FunctionCallingConfig(EnvironmentConfig):
    """Requests that are answered by calls of the functions a task offers."""

    name: str = "function_calling"
    credit: Literal["exact", "toolrl"] = "exact"
    """What the calls of a wrong answer are paid: nothing, or ToolRL's partial score."""
    listed: bool = True
    """Whether a made request begins with the functions in words; the embedded policy reads no
    schemas, a given model does."""
    apis: ApisConfig = ApisConfig()
