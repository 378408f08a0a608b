"""Has every question exactly the answer that its task says? SQL over the triples decides.

    python -m tests.benchmarks.uniqueness --knowledge RUN/knowledge --questions 10000

Half of the questions are drawn by signature, half are grown layer by layer, over all three splits.
`brute_force` reads the text of each query anew, evaluates it in sqlite, compares the set of answers
with the gold answer, and counts shortcut and redundant edges by leaving parts out. Any exception
ends with exit code 1. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.environments.funnel import Funnel
from espalier.records import SPLITS, NullTracker, Task
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest
from espalier_search.synthesis.questions import FormalQuestions

from .brute_force import Store, answers, faults, parsed


def main() -> None:
    """Parse arguments, make questions, judge them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        knowledge = options.knowledge or Path(scratch) / "knowledge"
        if options.knowledge is None:
            ingest.run(Profile(), {}, knowledge, NullTracker())
        tasks = made(knowledge, options.questions, options.seed)
        counts, exceptions = judged(tasks, knowledge)
    for line in exceptions[:20]:
        print(line)
    print(f"\n{'source':12s}{'kind':14s}{'hops':>5s}{'questions':>11s}{'exceptions':>12s}")
    for (source, kind, hops), counted in sorted(counts.items()):
        print(f"{source:12s}{kind:14s}{hops:5d}{counted['questions']:11d}{counted['wrong']:12d}")
    total = Counter[str]()
    for counted in counts.values():
        total.update(counted)
    summary = {
        "benchmark": "uniqueness",
        "questions": total["questions"],
        "grown": sum(
            c["questions"] for (source, _, _), c in counts.items() if source != "webshaper"
        ),
        "other_answer_sets": total["other answer set"],
        "shortcuts": sum(n for name, n in total.items() if name.startswith("shortcut")),
        "redundant": sum(n for name, n in total.items() if name.startswith("redundant")),
        "faults": {name: n for name, n in total.items() if name not in ("questions", "wrong")},
    }
    print(json.dumps(summary))
    if exceptions or total["questions"] < options.questions:
        sys.exit(1)


def made(knowledge: Path, num_questions: int, seed: int) -> list[Task]:
    """Tasks of every split, half of them grown."""
    settings = Profile.model_validate({"seed": seed, "synthesis": {"expansion": {"share": 0.5}}})
    graph = KnowledgeGraph.load(knowledge)
    source = FormalQuestions(settings, knowledge, graph, Funnel())
    shares = {"train": 0.65, "dev": 0.1, "heldout": 0.25}
    tasks: list[Task] = []
    for split in SPLITS:
        started = time.perf_counter()
        found = source.draw(split, round(num_questions * shares[split]))
        tasks += [question.task for question in found]
        print(f"{split}: {len(found)} questions, {time.perf_counter() - started:.0f} s", flush=True)
    return tasks


def judged(
    tasks: list[Task], knowledge: Path
) -> tuple[dict[tuple[str, str, int], Counter[str]], list[str]]:
    """Counts by source, kind and hops; a line for every exception."""
    store, names = opened(knowledge)
    counts: dict[tuple[str, str, int], Counter[str]] = {}
    exceptions: list[str] = []
    for task in tasks:
        kind, hops, query = (task.extra[name] for name in ("kind", "hops", "query"))
        counted = counts.setdefault((task.metadata.source, kind, hops), Counter())
        counted["questions"] += 1
        node = parsed(query)
        found = {names[entity_id] for entity_id in answers(node, store)}
        wrong = faults(node, store)
        if found != set(task.verifier.gold):
            wrong.append("other answer set")
        counted.update(set(wrong))
        counted["wrong"] += bool(wrong)
        exceptions += [f"{fault}: {query} -> {sorted(found)[:5]}" for fault in set(wrong)]
    return counts, exceptions


def opened(knowledge: Path) -> tuple[Store, dict[str, str]]:
    """The triples in a database, and the names of their entities, read from the bare files."""
    rows = pq.read_table(knowledge / "triples.parquet").to_pydict()
    entities = pq.read_table(knowledge / "entities.parquet", columns=["entity_id", "name"])
    named = entities.to_pydict()
    triples = zip(rows["subject"], rows["relation"], rows["object"], strict=True)
    return Store(triples), dict(zip(named["entity_id"], named["name"], strict=True))


if __name__ == "__main__":
    main()
