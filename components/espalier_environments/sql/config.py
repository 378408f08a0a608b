"""Settings of questions that are answered by queries."""

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
    """The databases that are generated if `tasks` is unset, and the questions about them."""

    databases: int = Field(default=400, ge=20, le=5_000)
    """Number of databases of two tables; each database, with all its names, is in one split."""
    rows: int = Field(default=8, ge=4, le=60)
    """Rows of the larger table; the other has half as many."""
    questions: int = Field(default=40, ge=1, le=500)
    """Questions drawn about each database; ambiguous ones are left out."""
    kinds: EachOnce[QuestionKind] = KINDS
    """Kinds of questions."""
    show_schema: bool = True
    """Whether the prompt shows tables and columns; otherwise the policy must look them up."""
    seed: int = 0
    """Seed of databases and questions; equal for runs that are to be compared."""


class SqlConfig(EnvironmentConfig):
    """Questions about a database, answered by queries, as in InterCode (arXiv:2306.14898)."""

    name: str = "sql"
    tasks: Path | None = None
    """File of training questions, in InterCode's or Spider's format; unset generates databases."""
    heldout_tasks: Path | None = None
    """A separate file of held-out questions; unset splits the databases of `tasks`."""
    golds: Literal["as_written", "quoted"] = "as_written"
    """Form of gold queries: "quoted" converts WikiSQL's, in which values and columns are not
    quoted, into valid SQL; with "as_written", those that are not valid queries are left out."""
    outcome: Literal["match", "intercode"] = "match"
    """Outcome of rows: "match" is 1 for exactly the gold rows; "intercode" is InterCode's reward,
    -1 to 1, and counts every overlap above 0 as right."""
    query_timeout_s: float = Field(default=2.0, gt=0, le=20)
    """Time limit of a query; the policy reads when it is exceeded."""
    max_rows: int = Field(default=1000, ge=1, le=100_000)
    """A result with more rows is refused, which the policy reads."""
    max_observation_characters: int = Field(default=512, ge=16)
    """Longer results are cut in their middle; the whole result is judged."""
    queries_per_run: int = Field(default=32, ge=1, le=256)
    """Most waiting queries that run in one sandbox together, each in its own process."""
    made: MadeDatabasesConfig = MadeDatabasesConfig()
    sandbox: SandboxConfig = LocalSandboxConfig(packages=(), size=2)

    def external_files(self) -> dict[str, Path | None]:
        """Return the files of questions, by the key of the profile that names them."""
        return {"environment.tasks": self.tasks, "environment.heldout_tasks": self.heldout_tasks}
