"""All parts of a set of questions, on as many processes as asked for, published as one artifact."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from espalier.artifacts import (
    DataError,
    EngineError,
    Manifest,
    Provenance,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.bulk.part import Drawn, write_part
from espalier.synthesis.bulk.stream import QuestionStream
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.questions import FormalQuestions
from espalier.synthesis.task_making import Split, formal_question
from espalier.synthesis.webshaper.candidate import Candidate
from espalier.synthesis.webshaper.generator import family_weights
from espalier.synthesis.webshaper.pools import Chain, Join, chains, intersections, unions
from espalier.synthesis.webshaper.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is drawn; everything here is part of what the rows depend on."""

    knowledge: Path
    split: Split
    count: int
    parts: int = 8
    """The rows depend on it, and not on the number of processes."""


def draw_questions(
    profile: Profile, asked: Asked, output_dir: Path, tracker: Tracker, *, processes: int
) -> Manifest:
    """Write the questions of a split as JSON lines of tasks, one file a part.

    The same call continues a killed one, row by row.

    Raises:
        ArtifactError: the knowledge artifact is broken, or what was begun is of another order.
        DataError: the knowledge yields no question.
        EngineError: a process was killed.
    """
    knowledge = open_artifact(asked.knowledge)
    provenance = Provenance(
        producer="draw_questions",
        config_digest=json_digest(
            [profile.stage_digest("synthesize"), asked.split, asked.count, asked.parts]
        ),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    work = _begun(work_dir(output_dir), provenance.config_digest, knowledge.content)
    drawn = _all_parts(profile, asked, work, tracker, processes)
    if not any(part.rows for part in drawn):
        raise DataError(
            f"{asked.knowledge}: yields no question of split {asked.split}; give more triples"
        )
    with publishing(output_dir, provenance) as draft:
        for number, part in enumerate(drawn):
            name = _name(number)
            # linked and not moved: a kill before the publishing would take moved rows with it
            (draft.path / f"{name}.jsonl").hardlink_to(work / name / "rows.jsonl")
            draft.rows[name] = part.rows
        summary = {
            "asked": asked.count,
            "rows": sum(part.rows for part in drawn),
            "judged": sum(part.draws for part in drawn),
            "ended_signatures": sum(part.ended_signatures for part in drawn),
        }
        (draft.path / "funnel.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    if summary["rows"] < asked.count:
        tracker.note(f"{summary['rows']} of {asked.count} questions; the knowledge yields no more")
    tracker.metrics({name: float(value) for name, value in summary.items()})
    return draft.published


def _begun(work: Path, *digests: str) -> Path:
    """The folder of this very order inside `work`; what other orders left there is removed."""
    own = work / json_digest(digests)[:16]
    for other in work.iterdir() if work.is_dir() else ():
        if other != own:
            shutil.rmtree(other)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _all_parts(
    profile: Profile, asked: Asked, work: Path, tracker: Tracker, processes: int
) -> list[Drawn]:
    """Every part, in order; process w of W makes parts w, w + W, ..."""
    shares = [range(first, asked.parts, processes) for first in range(processes)]
    drawn: dict[int, Drawn] = {}
    with tracker.progress("parts of questions", asked.parts) as progress:
        if processes == 1:
            drawn = _some_parts(profile, asked, work, shares[0])
            progress.advance(asked.parts)
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(processes, mp_context=context) as pool:
                futures = [pool.submit(_some_parts, profile, asked, work, s) for s in shares if s]
                try:
                    for future in as_completed(futures):
                        drawn |= future.result()
                        progress.advance(len(future.result()))
                except BrokenProcessPool as error:
                    raise EngineError(
                        "a process that drew questions was killed, perhaps for memory; the same "
                        "command goes on after the last row written. Ask for fewer processes"
                    ) from error
    return [drawn[number] for number in range(asked.parts)]


def _some_parts(
    profile: Profile, asked: Asked, work: Path, numbers: Sequence[int]
) -> dict[int, Drawn]:
    """Draw parts one after the other, in this process."""
    graph = KnowledgeGraph.load(asked.knowledge)
    world = FormalQuestions(profile, asked.knowledge, graph, Funnel()).world(asked.split)
    steps = Steps(graph, asked.split)
    signatures = _signatures(graph)
    weights = family_weights(profile.synthesis)

    def row(candidate: Candidate) -> str:
        return formal_question(candidate, asked.split, profile.seed).task.model_dump_json()

    drawn: dict[int, Drawn] = {}
    for number in numbers:
        own = {family: found[number :: asked.parts] for family, found in signatures.items()}
        seed = f"{profile.seed}/{asked.split}/{number}"
        stream = QuestionStream(own, weights, steps, world, seed)
        count = len(range(number, asked.count, asked.parts))
        drawn[number] = write_part(work / _name(number), stream, row, count)
    return drawn


def _signatures(graph: KnowledgeGraph) -> Mapping[str, Sequence[Chain | Join]]:
    chained = {f"chain-{length}": chains(graph, length) for length in range(1, 5)}
    return {**chained, "intersection": intersections(graph), "union": unions(graph)}


def _name(number: int) -> str:
    return f"part-{number:04d}"
