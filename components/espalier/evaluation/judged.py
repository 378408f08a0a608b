"""A judged policy, and where judged policies wait for the others after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from espalier.evaluation.questions import QuestionRow, questions_table, read_questions
from espalier.records.trajectory import Trajectory, read_trajectories, write_trajectories


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """What the rollouts took, and how their tokens compare, as the roller counted it."""

    action_tokens: int
    total_tokens: int
    seconds: float
    token_drift: int = 0
    """Turns whose tokens are not those of the chat template's whole rendering."""
    compared_turns: int = 0
    """Turns that were compared with it; see `rollout.compare_every`."""


class Judged(NamedTuple):
    """One policy's rows in the order of the suite, and a few greedy trajectories."""

    rows: list[QuestionRow]
    kept: list[Trajectory]
    cost: RolloutCost


class FinishedPolicies:
    """Policies that are judged already, by key; each is saved by one rename."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str, judge: Callable[[], Judged]) -> Judged:
        """What was saved under `key`; `judge` makes it where nothing was.

        It is read back in either case, so that a resumed run cannot differ from an unbroken one.
        """
        if not (self._directory / key).is_dir():
            self._save(key, judge())
        return self._load(key)

    def _load(self, key: str) -> Judged:
        folder = self._directory / key
        (rows,) = read_questions(folder / "questions.parquet").values()
        cost = RolloutCost(**json.loads((folder / "cost.json").read_bytes()))
        return Judged(rows, read_trajectories(folder / "trajectories.parquet"), cost)

    def _save(self, key: str, judged: Judged) -> None:
        draft = self._directory / f".{key}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        pq.write_table(questions_table({key: judged.rows}), draft / "questions.parquet")
        write_trajectories(draft / "trajectories.parquet", judged.kept)
        (draft / "cost.json").write_text(json.dumps(asdict(judged.cost)), encoding="utf-8")
        draft.rename(self._directory / key)
