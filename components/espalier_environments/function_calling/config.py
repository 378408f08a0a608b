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
    """The functions that are generated for training, and the requests for them."""

    kinds: EachOnce[RequestKind] = (
        "single", "multiple", "parallel", "parallel_multiple", "none",
    )  # fmt: skip
    """Kinds of requests, in equal shares: one function is offered and called ("single"), one of
    several ("multiple"), one twice ("parallel"), two of several ("parallel_multiple"), or none fits
    ("none"); "conversation" is a multi-turn conversation over the services."""
    offered: int = Field(default=3, ge=2, le=8)
    """Number of functions offered by a request with a choice; also the number of tools that a
    conversation offers besides those it needs."""
    max_parameters: int = Field(default=3, ge=1, le=5)
    """Most parameters of a function, optional ones included."""
    seed: int = 0
    """Seed of the requests; equal for runs that are to be compared."""


class FunctionCallingConfig(EnvironmentConfig):
    """Requests answered by calls of the functions that a task offers."""

    name: str = "function_calling"
    credit: Literal["exact", "toolrl"] = "exact"
    """Outcome of wrong calls: 0 ("exact"), or ToolRL's partial score ("toolrl")."""
    listed: bool = True
    """Whether a generated request begins with a list of the functions in words, for the embedded
    policy, which cannot read schemas."""
    apis: ApisConfig = ApisConfig()
