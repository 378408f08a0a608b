"""One policy's result on one question, and the parquet file of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.artifacts import ArtifactError
from espalier.rewards import is_right, token_f1
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """What one policy made of one question: greedily once, and sampled a few times."""

    task_id: str
    hops: int
    family: str
    em: bool
    """The greedy answer is right by the task's verifier: it matches exactly, or means the same."""
    f1: float
    """Word overlap of the greedy answer, 0-1."""
    answer: str | None
    gold: str
    """The canonical accepted answer."""
    tool_calls: int
    finish_reason: str
    samples: int
    """Answers sampled for pass@k; 0 where the question is not among the sampled ones."""
    samples_right: int


def score_question(
    task: Task, greedy: Trajectory, sampled: Sequence[Trajectory] = ()
) -> QuestionRow:
    """Judge the answers to `task` by its verifier, and by F1."""
    gold = task.verifier.gold
    return QuestionRow(
        task_id=task.task_id,
        hops=task.metadata.hops,
        family=task.metadata.family,
        em=is_right(greedy.answer, task.verifier),
        f1=token_f1(greedy.answer, gold),
        answer=greedy.answer,
        gold=gold[0],
        tool_calls=len(greedy.tool_calls),
        finish_reason=greedy.finish_reason.value,
        samples=len(sampled),
        samples_right=sum(is_right(one.answer, task.verifier) for one in sampled),
    )


def questions_table(rows_by_policy: Mapping[str, Sequence[QuestionRow]]) -> pa.Table:
    """One row a question and policy: the columns of `QuestionRow` and `policy`."""
    rows = [
        {"policy": policy, **asdict(row)} for policy, rows in rows_by_policy.items() for row in rows
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def read_questions(path: Path) -> dict[str, list[QuestionRow]]:
    """Read what `questions_table` made, by policy.

    Raises:
        ArtifactError: a file that is missing, truncated, or lacks a column.
    """
    try:
        rows = pq.read_table(path).cast(_SCHEMA).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ArtifactError(
            f"{path}: not a readable table of questions ({error}). "
            "Delete the artifact and run evaluate again."
        ) from error
    by_policy: dict[str, list[QuestionRow]] = {}
    for row in rows:
        by_policy.setdefault(row.pop("policy"), []).append(QuestionRow(**row))
    return by_policy


_SCHEMA = pa.schema(
    [
        ("policy", pa.string()),
        ("task_id", pa.string()),
        ("hops", pa.int64()),
        ("family", pa.string()),
        ("em", pa.bool_()),
        ("f1", pa.float64()),
        ("answer", pa.string()),
        ("gold", pa.string()),
        ("tool_calls", pa.int64()),
        ("finish_reason", pa.string()),
        ("samples", pa.int64()),
        ("samples_right", pa.int64()),
    ]
)
