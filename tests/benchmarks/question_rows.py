"""What is in an artifact of `draw-questions`: repeats, rows in a wrong file, and an even sample."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from espalier.records import Task, read_manifest

from .uniqueness import judged


class Rows(NamedTuple):
    """One look at every row."""

    distinct: int
    """Queries that differ, told apart by eight bytes of their digest."""
    of_another_split: int
    """Rows that read an entity which is neither of the file's split nor a hub."""
    sample: list[Task]


def looked_through(questions: Path, knowledge: Path, num_sampled: int) -> Rows:
    """Read every row; keep about `num_sampled`, evenly over all files."""
    table = pq.read_table(knowledge / "entities.parquet", columns=["document_id", "split"])
    split_of = dict(zip(*table.to_pydict().values(), strict=True))
    every = max(1, sum(read_manifest(questions).rows.values()) // num_sampled)
    seen: set[int] = set()
    sample: list[Task] = []
    strays = number = 0
    for path in sorted(questions.glob("*.jsonl")):
        split = path.name.partition("-")[0]
        with path.open("rb") as lines:
            for line in lines:
                told = json.loads(line)["metadata"]
                digest = hashlib.blake2b(told["extra"]["query"].encode(), digest_size=8).digest()
                seen.add(int.from_bytes(digest))
                read = {split_of[document] for document in told["extra"]["evidence"]}
                strays += told["split"] != split or not read <= {split, "hub"}
                if number % every == 0:
                    sample.append(Task.model_validate_json(line))
                number += 1
    return Rows(len(seen), strays, sample)


def figures_of(rows: Rows, knowledge: Path) -> dict[str, int]:
    """Counts, with the exceptions that SQL over the triples finds in the sample."""
    _, exceptions = judged(rows.sample, knowledge)
    for line in exceptions[:20]:
        print(line)
    return {
        "distinct": rows.distinct,
        "of_another_split": rows.of_another_split,
        "judged_by_sql": len(rows.sample),
        "exceptions": len(exceptions),
    }
