"""Questions about databases, answered by queries (InterCode, Yang et al. 2023, arXiv:2306.14898).

The policy queries a read-only SQLite database in a sandbox, reads rows or errors, and submits the
rows of its last query.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from espalier.config import EnvironmentConfig
from espalier.environments.benchmarks import benchmark_tasks
from espalier.environments.contract import Environments, EnvironmentsOver
from espalier.environments.episode import EpisodeRules
from espalier.environments.family import SimpleFamily, dealt_split, make_task
from espalier.environments.funnel import Funnel
from espalier.environments.mixins import FamilyQuestion, HasBenchmarks, PlainQuestion
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import Tool
from espalier.records import (
    DataError,
    Draft,
    Split,
    Task,
    ToolCall,
    ToolCalls,
    Tracker,
    read_tasks,
    write_tasks,
)
from espalier.records.trajectory import Trajectory
from espalier.rewards.result_rows import Row, intercode_sql_reward, rows_match
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_environments.sql.config import SqlConfig
from espalier_environments.sql.databases import Database
from espalier_environments.sql.public_tasks import (
    BrokenGold,
    PublicFile,
    public_tasks,
    read_public_file,
    row_arguments,
)
from espalier_environments.sql.questions import MadeQuestion, made_questions
from espalier_environments.sql.reading import QueryLogWriter
from espalier_environments.sql.runs import QueryRuns, read_written_rows
from espalier_environments.sql.session import SUBMIT, Session, declared_tools
from espalier_environments.sql.worlds import made_database, made_databases

INSTRUCTIONS = (
    "Answer the question with one SQL query over the database (SQLite, read-only). Look at its "
    "tables first where you do not know them. When the last query returned the rows that answer "
    "the question, submit.\n"
)
_log = logging.getLogger(__name__)


class Sql(SimpleFamily[SqlConfig], HasBenchmarks):
    """The family of questions about databases."""

    name = "sql"
    config = SqlConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True
    headline = "success_rate"

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the outcome's range; InterCode's reward is below 0 for reversed rows."""
        low = -1.0 if cast("SqlConfig", settings).outcome == "intercode" else 0.0
        return (low, 1.0)

    def tools(self) -> Sequence[Tool]:
        """Return the tools' schemas; `environments` binds them to an episode's database."""
        return declared_tools()

    # ------------------------------------------------------------------------------ tasks

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Store the tasks and databases of the user's files; store nothing if they are generated.

        Raises:
            DataError: a file is missing or malformed, or none of its gold queries runs.
        """
        del tracker
        source = "Databases and questions made by espalier."
        if self.settings.tasks is not None:
            files = self._training_files()
            source = f"Questions and databases of {' and '.join(p.name for p in files)}."
            folder = draft.path / _DATABASES
            folder.mkdir()
            tasks: list[Task] = []
            for path, splits in files.items():
                read, file = self._read(path)
                tasks += self._dealt(read, splits)
                for database in file.databases.values():
                    (folder / f"{database.name}.sqlite").write_bytes(database.content)
            draft.rows["tasks"] = write_tasks(draft.path / _TASKS, tasks)
        (draft.path / "attribution.txt").write_text(f"{source}\n", encoding="utf-8")

    def _training_files(self) -> dict[Path, tuple[Split, ...]]:
        """Return file -> the splits that its databases are assigned to."""
        assert self.settings.tasks is not None, "the caller has checked that there are files"
        if self.settings.heldout_tasks is None:
            return {self.settings.tasks: ("train", "dev", "heldout")}
        return {
            self.settings.tasks: ("train", "dev"),
            self.settings.heldout_tasks: ("heldout",),
        }

    def _dealt(self, tasks: Sequence[Task], splits: Sequence[Split]) -> list[Task]:
        """Return the tasks with the splits of their databases."""
        dealt: list[Task] = []
        for task in tasks:
            split: Split = "heldout"
            if "train" in splits:
                name = str(task.arguments["database"])
                split = dealt_split(name, self.profile.splits, heldout="heldout" in splits)
            metadata = task.metadata.model_copy(update={"split": split})
            dealt.append(task.model_copy(update={"metadata": metadata}))
        return dealt

    def _read(self, path: Path) -> tuple[list[Task], PublicFile]:
        """Return the tasks of a file whose gold queries run, and the file's content."""
        tasks, broken, file = self.read_golds(path)
        if broken:
            first = broken[0]
            _log.warning(
                "%s: %d of %d rows are left out, as their gold query does not run; the first: "
                "%s: %s (%s)",
                path, len(broken), len(broken) + len(tasks), first.where, first.gold, first.reason,
            )  # fmt: skip
        if not tasks:
            raise DataError(
                f"{path}: none of its gold queries runs"
                + ('; set environment.golds to "quoted"' * (self.settings.golds == "as_written"))
            )
        return tasks, file

    def read_golds(self, path: Path) -> tuple[list[Task], list[BrokenGold], PublicFile]:
        """Return the tasks of a file, the rows without a task, and the file's content.

        Raises:
            DataError: the file has neither format, or a database cannot be read.
        """
        file = read_public_file(path, self.settings.golds)
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            runs = QueryRuns(sandboxes, self.settings, judging=True)
            tasks, broken = public_tasks(file, runs, sandboxes, split="heldout", family=self.name)
        return tasks, broken, file

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return questions about generated databases, or those in the user's files."""
        if self.settings.tasks is None:
            return super().questions(knowledge, funnel, tracker)
        asked = self.profile.synthesis
        counts: dict[Split, int] = {
            "train": asked.train_tasks, "dev": asked.dev_tasks, "heldout": asked.heldout_tasks,
        }  # fmt: skip
        read = read_tasks(knowledge / _TASKS)
        found: dict[Split, Sequence[FamilyQuestion]] = {}
        for split, count in counts.items():
            own = [PlainQuestion(task) for task in read if task.metadata.split == split]
            if not own:
                raise DataError(
                    f"{self.settings.tasks}: its databases are too few for the split {split}; "
                    "give more of them, or environment.heldout_tasks"
                )
            found[split] = own[:count]
        return found

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return questions about the generated databases of a split."""
        made, splits = self.settings.made, self.profile.splits
        databases = made_databases(made, splits, split)
        found = made_questions(databases, made, splits, split)
        return [self._made_task(question, split) for question in found[:count]]

    def _made_task(self, question: MadeQuestion, split: Split) -> Task:
        about = question.about
        words = question.words
        if self.settings.made.show_schema:
            words = f"{about.schema} ; {words}"
        return make_task(
            self.name,
            words,
            gold=(question.query,),
            split=split,
            source="made database",
            key=question.query,
            kind="rows",
            arguments=row_arguments(about.database.name, question.rows, question.ordered),
            metadata={
                "difficulty": float(1 + question.kind.startswith("join")),
                "pattern": question.kind,
                "extra": {
                    "kind": question.kind,
                    "query": question.query,
                    "entities": list(question.names),
                },
            },
        )

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open a pool of sandboxes, and environments over the tasks' databases."""
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            found = self.environments_in(sandboxes, self._databases(knowledge))
            yield lambda _view: found

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open environments over the databases next to the file of questions."""
        del knowledge
        databases = read_public_file(path, "as_written").databases
        with sandbox_pool(self.settings.sandbox, self.profile.kubernetes) as sandboxes:
            yield self.environments_in(sandboxes, lambda task: _named(databases, task))

    def _databases(self, knowledge: Path) -> Callable[[Task], Database]:
        """Return a function that finds the database of a task."""
        made, splits = self.settings.made, self.profile.splits
        if self.settings.tasks is not None:
            files = {
                path.stem: Database(path.stem, path.read_bytes())
                for path in (knowledge / _DATABASES).iterdir()
            }
            return lambda task: _named(files, task)

        @cache
        def found(name: str) -> Database:
            return made_database(name, made, splits).database

        return lambda task: found(str(task.arguments["database"]))

    def environments_in(
        self, sandboxes: PoolThread, database_of: Callable[[Task], Database]
    ) -> Environments:
        """Return environments whose queries run in these sandboxes."""
        runs = QueryRuns(sandboxes, self.settings)
        tools = self.tools()

        def rules_of(task: Task) -> EpisodeRules:
            most = self.settings.max_observation_characters
            session = Session(database_of(task), runs, most)
            return replace(
                self.rules(session.tools(tools)),
                read_answer=session.answer,
                ending_tools=frozenset({SUBMIT}),
            )

        return self.environments_by(tools, rules_of)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return whether the rows in an answer are the gold rows, or InterCode's reward.

        Args:
            task: the task with the gold rows.
            answer: rows as JSON, which is how the environment writes a policy's submission.
        """
        rows = read_written_rows(answer) if answer is not None else None
        if self.settings.outcome == "intercode":
            return intercode_sql_reward(rows, _gold_rows(task))
        return float(rows_match(rows, _gold_rows(task), ordered=bool(task.arguments["ordered"])))

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return InterCode's or Spider's questions, without those whose gold query fails."""
        tasks, _ = self._read(path)
        return benchmark_tasks(path, tasks)

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return InterCode's success rate (reward 1) and reward, and the execution match.

        For the execution match, rows may be in any order if the gold query has no ORDER BY.
        """
        answer = trajectory.answer
        rows = read_written_rows(answer) if answer is not None else None
        gold = _gold_rows(task)
        reward = intercode_sql_reward(rows, gold)
        is_match = rows_match(rows, gold, ordered=bool(task.arguments["ordered"]))
        return {
            "success_rate": float(reward == 1),
            "reward": reward,
            "execution_match": float(is_match),
        }

    def gold_script(self, task: Task) -> Script:
        """Yield the gold query, and the submission of its rows."""
        yield ToolCalls((ToolCall(name="execute", arguments={"query": task.verifier.gold[0]}),))
        yield ToolCalls((ToolCall(name=SUBMIT, arguments={}),))

    def demonstrate(self, task: Task) -> Script:
        """Look at the tables if the prompt does not show them, then run the gold query."""
        if not self.settings.made.show_schema or self.settings.tasks is not None:
            listed = yield ToolCalls((ToolCall(name="tables", arguments={}),))
            query = task.verifier.gold[0].lower()
            for table in listed.split("\n"):
                if table.lower() in query:
                    yield ToolCalls((ToolCall(name="describe", arguments={"table": table}),))
        yield from self.gold_script(task)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return query logs about generated databases; for the user's tasks, demonstrations."""
        if self.settings.tasks is not None or not self.settings.made.show_schema:
            return super().reading_material(knowledge, train)
        databases = made_databases(self.settings.made, self.profile.splits, "train")
        return QueryLogWriter(databases, [task.question for task in train])

    def answer_settings(self) -> Mapping[str, object]:
        """Return the settings of queries and their scores."""
        elsewhere = {"name", "tasks", "heldout_tasks", "golds", "made", "sandbox"}
        return {"sql": self.settings.model_dump(mode="json", exclude=elsewhere)}


_DATABASES, _TASKS = "databases", "tasks.jsonl"
"""Names in the knowledge artifact, for the user's tasks."""


def _named(databases: Mapping[str, Database], task: Task) -> Database:
    return databases[str(task.arguments["database"])]


def _gold_rows(task: Task) -> Sequence[Row]:
    rows = read_written_rows(json.dumps(task.arguments["rows"]))
    if rows is None:
        raise DataError(f"task {task.task_id}: its argument `rows` is not a list of rows")
    return rows
