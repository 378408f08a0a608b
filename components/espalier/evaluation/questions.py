"""One policy's result on one question, and the parquet file of such results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records import ArtifactError, Task
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import occurs_in, token_f1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """One policy's result on one question: a greedy answer and some sampled ones."""

    task_id: str
    groups: Mapping[str, str]
    """Name of a grouping -> the question's group, from the family's `report_groups`."""
    em: bool
    """Whether the task's verifier accepts the greedy answer."""
    f1: float | None
    """Token F1 of the greedy answer and the gold answers, 0-1; None if they are no texts."""
    answer: str | None
    gold: str
    """The canonical accepted answer."""
    tool_calls: int
    finish_reason: str
    samples: int
    """Number of answers sampled for pass@k; 0 if the question is not sampled."""
    samples_right: int
    """Number of right answers among `samples`; a lost one counts as wrong."""
    lost_episodes: int = 0
    """Number of episodes lost to infrastructure faults in every attempt; they count as wrong."""
    broke_sandbox_episodes: int = 0
    """Number of episodes whose own program ended the sandbox; they count as wrong."""
    grounded: bool | None = None
    """Whether a tool result contained the greedy answer; None without an answer, or if the family's
    tools look nothing up."""
    closed_book_em: bool | None = None
    """Whether the verifier accepts the answer from memory; None if none was requested."""
    closed_book_answer: str | None = None
    """The answer from memory; None if none was requested, or the policy called a tool instead."""


class FromMemory(NamedTuple):
    """An answer given without tools."""

    is_right: bool
    answer: str | None


def score_question(  # noqa: PLR0913 (what a row is made from)
    task: Task,
    groups: Mapping[str, str],
    greedy: Trajectory,
    sampled: Sequence[Trajectory] = (),
    *,
    has_text_answer: bool = True,
    grounded: bool | None = None,
    from_memory: FromMemory | None = None,
) -> QuestionRow:
    """Make a row from the greedy trajectory and the sampled ones of a question.

    Args:
        task: the question.
        groups: see `QuestionRow`.
        greedy: the greedy episode.
        sampled: the sampled episodes.
        has_text_answer: see `Family.has_text_answer`.
        grounded: `is_grounded(greedy)`; None if the family's tools look nothing up.
        from_memory: the answer without tools; None if none was requested.
    """
    gold = task.verifier.gold
    episodes = (greedy, *sampled)
    return QuestionRow(
        task_id=task.task_id,
        groups=dict(groups),
        em=greedy.is_right,
        f1=token_f1(None if greedy.is_lost else greedy.answer, gold) if has_text_answer else None,
        answer=greedy.answer,
        gold=gold[0],
        tool_calls=len(greedy.tool_results),
        finish_reason=greedy.finish_reason.value,
        samples=len(sampled),
        samples_right=sum(one.is_right for one in sampled),
        lost_episodes=sum(one.is_lost for one in episodes),
        broke_sandbox_episodes=sum(one.broke_sandbox for one in episodes),
        grounded=grounded,
        closed_book_em=from_memory.is_right if from_memory else None,
        closed_book_answer=from_memory.answer if from_memory else None,
    )


def is_grounded(trajectory: Trajectory) -> bool | None:
    """Whether a tool result contains the answer; None without an answer, or for a lost episode.

    One result has to contain the answer's words consecutively, after the normalization of EM.
    """
    if trajectory.answer is None or trajectory.is_lost:
        return None
    results = (result for result in trajectory.tool_results if result.succeeded)
    return any(occurs_in(trajectory.answer, result.content) for result in results)


def questions_table(rows_by_policy: Mapping[str, Sequence[QuestionRow]]) -> pa.Table:
    """Table with one row per question and policy: the fields of `QuestionRow`, and `policy`."""
    rows = [
        {"policy": policy, **asdict(row), "groups": json.dumps(dict(row.groups))}
        for policy, rows in rows_by_policy.items()
        for row in rows
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def read_questions(path: Path) -> dict[str, list[QuestionRow]]:
    """Read a file of `questions_table`: policy -> its rows.

    Raises:
        ArtifactError: the file is missing or truncated, or lacks a column.
    """
    try:
        rows = pq.read_table(path).select(_SCHEMA.names).cast(_SCHEMA).to_pylist()
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise ArtifactError(
            f"{path}: not a readable table of questions ({error}). "
            "Delete the artifact and run evaluate again."
        ) from error
    by_policy: dict[str, list[QuestionRow]] = {}
    for row in rows:
        row["groups"] = json.loads(row["groups"])
        by_policy.setdefault(row.pop("policy"), []).append(QuestionRow(**row))
    return by_policy


_SCHEMA = pa.schema(
    [
        ("policy", pa.string()),
        ("task_id", pa.string()),
        ("groups", pa.string()),
        ("em", pa.bool_()),
        ("f1", pa.float64()),
        ("answer", pa.string()),
        ("gold", pa.string()),
        ("tool_calls", pa.int64()),
        ("finish_reason", pa.string()),
        ("samples", pa.int64()),
        ("samples_right", pa.int64()),
        ("lost_episodes", pa.int64()),
        ("broke_sandbox_episodes", pa.int64()),
        ("grounded", pa.bool_()),
        ("closed_book_em", pa.bool_()),
        ("closed_book_answer", pa.string()),
    ]
)
