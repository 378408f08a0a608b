"""Settings of questions that queries answer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from espalier.config import EnvironmentConfig, LocalSandboxConfig, SandboxConfig
from espalier.config.data import EachOnce, Section

QuestionKind = Literal[
    "lookup", "list", "count", "both", "most", "top", "aggregate", "group", "common",
    "join_lookup", "join_list", "join_count",
]  # fmt: skip
KINDS: tuple[QuestionKind, ...] = (
    "lookup", "list", "count", "both", "most", "top", "aggregate", "group", "common",
    "join_lookup", "join_list", "join_count",
)  # fmt: skip


class MadeDatabasesConfig(Section):
    """The databases that are made where `tasks` is unset, and what is asked about them."""

    databases: int = Field(default=400, ge=20, le=5_000)
    """Databases of two tables; each is in one split, as every name in it."""
    rows: int = Field(default=8, ge=4, le=60)
    """Rows of the larger table; the other has half as many."""
    questions: int = Field(default=40, ge=1, le=500)
    """Questions that are drawn about each; those that are ambiguous are left out."""
    kinds: EachOnce[QuestionKind] = KINDS
    """What is asked for."""
    show_schema: bool = True
    """Whether the prompt has the tables and columns; else the policy asks for them."""
    seed: int = 0
    """Of the databases and questions: the same for every run that compares with another."""


class SqlConfig(EnvironmentConfig):
    """Questions about a database that queries answer, as InterCode has them (arXiv:2306.14898)."""

    name: str = "sql"
    tasks: Path | None = None
    """File of questions to train on, in InterCode's or Spider's format; unset makes databases."""
    heldout_tasks: Path | None = None
    """The held-out ones in a file of their own; unset deals the databases of `tasks` out."""
    golds: Literal["as_written", "quoted"] = "as_written"
    """"quoted" puts WikiSQL's golds, which name values and columns bare, into proper SQL; where
    they are as written, those that are no query are left out."""
    outcome: Literal["match", "intercode"] = "match"
    """"match" pays for exactly the gold rows; "intercode" pays InterCode's reward, -1 to 1, and
    counts every overlap above 0 as right."""
    query_timeout_s: float = Field(default=2.0, gt=0, le=20)
    """A query that takes longer is ended, and the policy reads so."""
    max_rows: int = Field(default=1000, ge=1, le=100_000)
    """A result of more rows is refused, and the policy reads so."""
    max_observation_characters: int = Field(default=512, ge=16)
    """More than this of a result is cut out of its middle; what is judged is the whole."""
    queries_per_run: int = Field(default=32, ge=1, le=256)
    """Queries that wait together run in one sandbox, each in a process of its own."""
    made: MadeDatabasesConfig = MadeDatabasesConfig()
    sandbox: SandboxConfig = LocalSandboxConfig(packages=(), size=2)

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        return {"environment.tasks": self.tasks, "environment.heldout_tasks": self.heldout_tasks}
