"""The tasks as a table: one row a task, with what the suite judges computed as columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import pandas as pd

from espalier.artifacts import ArtifactError
from espalier.knowledge.folding import folded_name, words
from espalier.knowledge.graph import read_rows
from espalier.rewards import normalize_answer
from espalier.tasks import Task


class SplitTask(NamedTuple):
    """A task and the split whose file it stood in."""

    file_split: str
    task: Task


@dataclass(frozen=True, slots=True)
class EntitySplits:
    """Which splits a name may occur in, by the knowledge artifact."""

    splits: Mapping[str, frozenset[str]]
    """Folded name -> splits of every entity so named."""
    hubs: frozenset[str]
    """Folded names of hubs: values that every split shares."""
    hub_kinds: Mapping[str, int] = field(default_factory=dict)
    """Exempt kind -> number of its hubs; the report names them."""

    @classmethod
    def load(cls, knowledge_dir: Path) -> Self:
        """Read them from `entities.parquet`.

        Raises:
            ArtifactError: the file is missing, truncated, or lacks a column.
        """
        path = knowledge_dir / "entities.parquet"
        splits: dict[str, set[str]] = defaultdict(set)
        hubs: set[str] = set()
        hub_kinds: Counter[str] = Counter()
        try:
            for row in read_rows(path):
                name = folded_name(str(row["name"]))
                splits[name].add(str(row["split"]))
                if row["hub"]:
                    hubs.add(name)
                    hub_kinds[str(row["kind"])] += 1
        except KeyError as error:
            raise ArtifactError(f"{path}: has no column {error}. Run ingest again.") from error
        frozen = {name: frozenset(found) for name, found in splits.items()}
        return cls(frozen, frozenset(hubs), dict(sorted(hub_kinds.items())))


def task_columns(tasks: Sequence[SplitTask], entities: EntitySplits) -> pd.DataFrame:
    """One row a task, in the order given; see `suites.TASK_SCHEMA` for the columns."""
    questions = [folded_name(task.question) for _, task in tasks]
    queries = [task.metadata.query for _, task in tasks]
    splits = [task.metadata.split for _, task in tasks]
    query_splits = _splits_by_key(zip(queries, splits, strict=True))
    return pd.DataFrame(
        {
            "row": range(len(tasks)),
            "task_id": [task.task_id for _, task in tasks],
            "split": splits,
            "is_in_own_file": [file_split == task.metadata.split for file_split, task in tasks],
            "question": [task.question for _, task in tasks],
            "question_words": [len(words(task.question)) for _, task in tasks],
            "query": queries,
            "blank_gold_answers": [_blank_answers(task) for _, task in tasks],
            "earlier_same_question": _earlier_copies(questions),
            "earlier_same_query": _earlier_copies(queries),
            # A task without a formal query (a user's own question) has none to share.
            "other_splits_of_query": [
                len(query_splits[query]) - 1 if query else 0 for query in queries
            ],
            "entity_split_conflicts": _entity_split_conflicts(tasks, entities),
        }
    )


def _blank_answers(task: Task) -> int:
    return sum(not normalize_answer(gold) for gold in task.verifier.gold)


def _earlier_copies(keys: Iterable[str]) -> list[int]:
    """How often each key stood before it; an empty key has no copies."""
    seen: Counter[str] = Counter()
    copies = []
    for key in keys:
        copies.append(seen[key] if key else 0)
        seen[key] += 1
    return copies


def _splits_by_key(pairs: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for key, split in pairs:
        found[key].add(split)
    return found


def _entity_split_conflicts(tasks: Sequence[SplitTask], entities: EntitySplits) -> list[int]:
    """Names of each chain that belong to another split, or occur in another split's chains.

    Names are compared folded, as a policy reads them: two entities of one name are one word to it.
    """
    chains = [{folded_name(name) for name in task.metadata.entities} for _, task in tasks]
    split_of = [task.metadata.split for _, task in tasks]
    met_in = _splits_by_key(
        (name, split) for chain, split in zip(chains, split_of, strict=True) for name in chain
    )
    return [
        sum(
            len(met_in[name]) > 1 or split not in entities.splits.get(name, frozenset({split}))
            for name in chain - entities.hubs
        )
        for chain, split in zip(chains, split_of, strict=True)
    ]
