"""How many distinct fair questions a second, phrasing included, and how many trajectories?

    python -m tests.benchmarks.synthesis_throughput --knowledge RUN/knowledge --seeds 3

One process. Trajectories are the embedded teacher's, which searches the documents as the policy
does; those that miss the answer are not counted. Without --knowledge, the default knowledge
artifact is made first (not timed). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from espalier.config import Profile
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.records.trajectory import Trajectory
from espalier.stages import ingest
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.questions import FormalQuestions
from espalier_search.synthesis.task_making import RoutedTask
from espalier_search.synthesis.teacher import RouteTeacher
from tests.benchmarks.keeping import provenance


class Rates(NamedTuple):
    """Of one seed, a second."""

    questions: float
    trajectories: float


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--demonstrated", type=int, default=2_000, help="of them, by the teacher")
    arguments = parser.parse_args()
    if arguments.knowledge is not None:
        report(arguments.knowledge, arguments)
        return
    with tempfile.TemporaryDirectory() as scratch:
        knowledge = Path(scratch) / "knowledge"
        print("ingesting the default knowledge source (not timed)", flush=True)
        ingest.run(Profile(), {}, knowledge, NullTracker())
        report(knowledge, arguments)


def report(knowledge: Path, asked: argparse.Namespace) -> None:
    """Measure every seed and print a line for each, then the JSON summary."""
    print("seed  questions/s  trajectories/s")
    rates = []
    for seed in range(asked.seeds):
        rates.append(measured(knowledge, Profile(seed=seed), asked))
        print(f"{seed:4d}  {rates[-1].questions:11.0f}  {rates[-1].trajectories:14.0f}", flush=True)
    summary: dict[str, object] = {"benchmark": "synthesis_throughput", "seeds": asked.seeds}
    for name, values in zip(Rates._fields, zip(*rates, strict=True), strict=True):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[f"{name}_per_s"] = {
            "mean": round(statistics.fmean(values), 1),
            "min": round(min(values), 1),
            "stdev": round(spread, 1),
        }
    print(json.dumps(summary | {"origin": provenance(1)}))


def measured(knowledge: Path, profile: Profile, asked: argparse.Namespace) -> Rates:
    """Draw questions, then have the teacher answer some."""
    started = time.perf_counter()
    graph = KnowledgeGraph.load(knowledge)
    questions = FormalQuestions(profile, knowledge, graph, Funnel()).draw("train", asked.questions)
    distinct = len({question.task.extra["query"] for question in questions})
    drawn_s = time.perf_counter() - started

    search = SearchTool.open(knowledge, "train", profile.search)
    teacher = RouteTeacher(search, profile.search.max_observation_words, profile.seed)
    started = time.perf_counter()
    answered = sum(_answers(teacher, question) for question in questions[: asked.demonstrated])
    return Rates(distinct / drawn_s, answered / (time.perf_counter() - started))


def _answers(teacher: RouteTeacher, question: RoutedTask) -> bool:
    if question.route is None:
        return False
    return isinstance(teacher.demonstrate(question.task, question.route, ""), Trajectory)


if __name__ == "__main__":
    main()
