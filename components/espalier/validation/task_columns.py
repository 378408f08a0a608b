"""The tasks as a table: one row a task, with what the suite judges computed as columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from espalier.environments import Family
from espalier.knowledge.folding import folded_name, words
from espalier.knowledge.graph import EntitySplits
from espalier.records import Task
from espalier.rewards import normalize_answer


class SplitTask(NamedTuple):
    """A task and the split whose file it stood in."""

    file_split: str
    task: Task


def task_columns(
    tasks: Sequence[SplitTask], entities: EntitySplits, family: Family[Any]
) -> pd.DataFrame:
    """One row a task, in the order given; see `suites.TASK_SCHEMA` for the columns.

    Args:
        tasks: of every split.
        entities: whose names must not be shared.
        family: says which tasks ask the same, and which names they are about.
    """
    questions = [folded_name(task.question) for _, task in tasks]
    queries = [family.question_key(task) for _, task in tasks]
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
            "entity_split_conflicts": _entity_split_conflicts(tasks, entities, family),
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


def _entity_split_conflicts(
    tasks: Sequence[SplitTask], entities: EntitySplits, family: Family[Any]
) -> list[int]:
    """Names of each chain that belong to another split, or occur in another split's chains.

    Names are compared folded, as a policy reads them: two entities of one name are one word to it.
    """
    chains = [{folded_name(name) for name in family.names_of(task)} for _, task in tasks]
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
