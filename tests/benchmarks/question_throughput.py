"""How many distinct fair questions a minute the generator makes, phrasing included.

    python -m tests.benchmarks.question_throughput --knowledge RUN/knowledge --seeds 3

Without --knowledge, the default knowledge artifact is made first (not timed). The last line of the
output is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from espalier.artifacts import NullTracker
from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.knowledge import stage as ingest
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.questions import FormalQuestions


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=20_000)
    arguments = parser.parse_args()
    if arguments.knowledge is not None:
        report(arguments.knowledge, arguments.seeds, arguments.questions)
        return
    with tempfile.TemporaryDirectory() as scratch:
        knowledge = Path(scratch) / "knowledge"
        print("ingesting the default knowledge source (not timed)", flush=True)
        ingest.run(Profile(), ingest.Inputs(), knowledge, NullTracker())
        report(knowledge, arguments.seeds, arguments.questions)


def report(knowledge: Path, num_seeds: int, num_questions: int) -> None:
    """Measure every seed and print a line for each, then the JSON summary."""
    rates = []
    print("seed  questions  distinct  signatures  seconds  per_minute")
    for seed in range(num_seeds):
        profile = Profile(seed=seed)
        started = time.perf_counter()
        graph = KnowledgeGraph.load(knowledge)
        source = FormalQuestions(profile, knowledge, graph, Funnel())
        questions = source.draw("train", num_questions)
        seconds = time.perf_counter() - started
        distinct = len({question.task.metadata.query for question in questions})
        signatures = len({question.task.metadata.signature for question in questions})
        rates.append(distinct / seconds * 60)
        print(
            f"{seed:4d}  {len(questions):9d}  {distinct:8d}  {signatures:10d}  {seconds:7.2f}  "
            f"{rates[-1]:10.0f}",
            flush=True,
        )
    spread = statistics.stdev(rates) if num_seeds > 1 else 0.0
    summary = {
        "benchmark": "question_throughput",
        "questions_per_seed": num_questions,
        "seeds": num_seeds,
        "distinct_per_minute": {
            "mean": round(statistics.fmean(rates)),
            "min": round(min(rates)),
            "stdev": round(spread),
        },
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
