"""Millions of questions, drawn in parts with constant memory and published as one artifact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from espalier.config import Profile, SplitsConfig
from espalier.environments.funnel import Funnel, apportion
from espalier.records import (
    DataError,
    Manifest,
    Provenance,
    Split,
    Tracker,
    json_digest,
    open_artifact,
    publishing,
    work_dir,
)
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.bulk_parts import (
    DrawnPart,
    QuestionStream,
    finished_part,
    write_part,
)
from espalier_search.synthesis.questions import FormalQuestions
from espalier_search.synthesis.task_making import formal_question
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion
from espalier_search.synthesis.webshaper.generator import kind_weights
from espalier_search.synthesis.webshaper.steps import (
    Chain,
    Join,
    Steps,
    chains,
    intersections,
    unions,
)


class Part(NamedTuple):
    """A share of the questions of one split; no two parts can draw the same question."""

    split: Split
    number: int
    """Index among the parts of the split."""

    @property
    def name(self) -> str:
        """Name of its folder and file."""
        return f"{self.split}-{self.number:04d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """Parameters of a bulk draw; the rows depend on every field."""

    knowledge: Path
    splits: tuple[Split, ...]
    count: int
    """Number of questions over all splits."""
    parts: int = 8
    """Parts per split, one file each; workers draw them in parallel."""


def first_quotas(order: BulkOrder, config: SplitsConfig) -> dict[Part, int]:
    """Rows per part: splits in proportion to their shares of the entities, equal within a split."""
    held_back: Mapping[Split, float] = {"dev": config.dev_share, "heldout": config.heldout_share}
    shares = {"train": 1 - sum(held_back.values()), **held_back}
    of_split = apportion({split: shares[split] for split in order.splits}, order.count)
    return {
        Part(split, number): len(range(number, of_split[split], order.parts))
        for split in order.splits
        for number in range(order.parts)
    }


def widen_quotas(
    quotas: Mapping[Part, int], rows: Mapping[Part, int], count: int
) -> dict[Part, int]:
    """Spread the rows that exhausted parts lack evenly over the quotas of the others.

    Args:
        quotas: current quota of every part.
        rows: rows drawn by every part, at most its quota; a part with fewer is exhausted.
        count: wanted rows of all parts together.

    Returns:
        The same quotas if nothing is missing or every part is exhausted.
    """
    going = [part for part in quotas if rows[part] == quotas[part]]
    missing = count - sum(rows.values())
    more = {part: len(range(place, missing, len(going))) for place, part in enumerate(going)}
    return {part: quota + more.get(part, 0) for part, quota in quotas.items()}


class PartMaker:
    """Draws parts one by one; the knowledge is loaded once."""

    def __init__(self, profile: Profile, order: BulkOrder) -> None:
        graph = KnowledgeGraph.load(order.knowledge)
        formal = FormalQuestions(profile, order.knowledge, graph, Funnel())
        self._seed = profile.seed
        self._parts = order.parts
        self._signatures = distinct_signatures(graph)
        self._weights = kind_weights(profile.synthesis)
        self._worlds = {split: formal.world(split) for split in order.splits}
        self._steps = {split: Steps(graph, split) for split in order.splits}

    def make(self, part: Part, quota: int, directory: Path) -> DrawnPart:
        """Write the rows of a part that are missing in `directory`."""
        split, number = part
        own = {kind: found[number :: self._parts] for kind, found in self._signatures.items()}
        stream = QuestionStream(
            own,
            self._weights,
            self._steps[split],
            self._worlds[split],
            f"{self._seed}/{split}/{number}",
        )

        def row(candidate: CandidateQuestion) -> str:
            return formal_question(candidate, split, self._seed).task.model_dump_json()

        return write_part(directory, stream, row, quota)


def distinct_signatures(graph: KnowledgeGraph) -> Mapping[str, Sequence[Chain | Join]]:
    """Signatures by kind, no two of which can draw the same question.

    Parts do not share a memory of drawn questions. So of two intersections that differ only in the
    order of their arms, one is left out.
    """
    chained = {f"chain-{length}": chains(graph, length) for length in range(1, 5)}
    joined = [join for join in intersections(graph) if join.arms[0] <= join.arms[1]]
    return {**chained, "intersection": joined, "union": unions(graph)}


DrawParts = Callable[[Mapping[Part, int]], Generator[tuple[Part, DrawnPart]]]
"""Draws parts up to their quotas, and yields each when it is finished."""

Workers = Callable[[Profile, BulkOrder, Path], AbstractContextManager[DrawParts]]
"""Context manager that starts workers for an order, writing below the given folder."""


@contextmanager
def this_process(profile: Profile, order: BulkOrder, work: Path) -> Generator[DrawParts]:
    """Draw the parts one by one in this process, without workers."""
    make = lru_cache(maxsize=1)(lambda: PartMaker(profile, order).make)

    def one_by_one(quotas: Mapping[Part, int]) -> Generator[tuple[Part, DrawnPart]]:
        for part, quota in quotas.items():
            yield part, make()(part, quota, work / part.name)

    yield one_by_one


def draw_questions(
    profile: Profile,
    order: BulkOrder,
    output_dir: Path,
    tracker: Tracker,
    *,
    workers: Workers = this_process,
) -> Manifest:
    """Write questions as JSON lines of tasks, one file per part.

    A call after a killed one continues after its last row.

    Raises:
        ArtifactError: the knowledge artifact is broken, or a part in work belongs to another order.
        DataError: the knowledge yields no question.
        EngineError: another process writes a part, a worker was killed, or there is no worker.
    """
    knowledge = open_artifact(order.knowledge)
    provenance = Provenance(
        producer="draw_questions",
        config_digest=json_digest(
            [
                profile.digest(("environment", "splits", "search", "synthesis")),
                order.splits,
                order.count,
                order.parts,
            ]
        ),
        seed=profile.seed,
        inputs={"knowledge": knowledge.content},
    )
    work = _work_folder(work_dir(output_dir), provenance.config_digest, knowledge.content)
    drawn = _all_parts(profile, order, work, tracker, workers)
    if not any(part.rows for part in drawn.values()):
        raise DataError(
            f"{order.knowledge}: yields no question of split {' or '.join(order.splits)}; give "
            "more triples"
        )
    with publishing(output_dir, provenance) as draft:
        for part, found in drawn.items():
            # hard-linked, not moved: a kill before publishing would lose moved rows
            file = draft.path / f"{part.name}.jsonl"
            file.hardlink_to(work / part.name / "rows.jsonl")
            draft.rows[part.name] = found.rows
        summary = {
            "asked": order.count,
            "rows": sum(part.rows for part in drawn.values()),
            "judged": sum(part.draws for part in drawn.values()),
            "ended_signatures": sum(part.ended_signatures for part in drawn.values()),
        }
        (draft.path / "funnel.json").write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    if summary["rows"] < order.count:
        tracker.note(f"{summary['rows']} of {order.count} questions; the knowledge yields no more")
    tracker.metrics({name: float(value) for name, value in summary.items()})
    return draft.published


def _work_folder(work: Path, *digests: str) -> Path:
    """The folder of this order inside `work`; folders of other orders are removed."""
    own = work / json_digest(digests)[:16]
    for other in work.iterdir() if work.is_dir() else ():
        if other != own:
            shutil.rmtree(other)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _all_parts(
    profile: Profile, order: BulkOrder, work: Path, tracker: Tracker, workers: Workers
) -> dict[Part, DrawnPart]:
    """Draw every part; in the next round other parts draw the rows that exhausted ones lack."""
    quotas = first_quotas(order, profile.splits)
    with workers(profile, order, work) as make_parts:
        while True:
            drawn = _round(quotas, work, make_parts, tracker)
            # a command killed in a later round leaves rows beyond the first quota
            rows = {part: min(drawn[part].rows, quota) for part, quota in quotas.items()}
            if (wider := widen_quotas(quotas, rows, order.count)) == quotas:
                return drawn
            quotas = wider


def _round(
    quotas: Mapping[Part, int], work: Path, make_parts: DrawParts, tracker: Tracker
) -> dict[Part, DrawnPart]:
    """Draw every unfinished part up to its quota."""
    drawn: dict[Part, DrawnPart] = {}
    with tracker.progress("parts of questions", len(quotas)) as progress:
        for part, quota in quotas.items():
            if (finished := finished_part(work / part.name, quota)) is not None:
                drawn[part] = finished
        progress.advance(len(drawn))
        for part, found in make_parts({p: q for p, q in quotas.items() if p not in drawn}):
            drawn[part] = found
            progress.advance(1)
    return {part: drawn[part] for part in quotas}
