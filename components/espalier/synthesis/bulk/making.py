"""Drawing the parts of an order in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from espalier.config import Profile
from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.bulk.order import Asked, Part
from espalier.synthesis.bulk.part import Drawn, write_part
from espalier.synthesis.bulk.stream import QuestionStream
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.questions import FormalQuestions
from espalier.synthesis.task_making import formal_question
from espalier.synthesis.webshaper.candidate import Candidate
from espalier.synthesis.webshaper.generator import family_weights
from espalier.synthesis.webshaper.pools import Chain, Join, chains, intersections, unions
from espalier.synthesis.webshaper.steps import Steps


class PartMaker:
    """Draws one part after the other; what is loaded serves all of them."""

    def __init__(self, profile: Profile, asked: Asked) -> None:
        graph = KnowledgeGraph.load(asked.knowledge)
        formal = FormalQuestions(profile, asked.knowledge, graph, Funnel())
        self._seed = profile.seed
        self._parts = asked.parts
        self._signatures = distinct_signatures(graph)
        self._weights = family_weights(profile.synthesis)
        self._worlds = {split: formal.world(split) for split in asked.splits}
        self._steps = {split: Steps(graph, split) for split in asked.splits}

    def make(self, part: Part, quota: int, directory: Path) -> Drawn:
        """Write the rows of a part into `directory`, or those that are missing there."""
        split, number = part
        own = {family: found[number :: self._parts] for family, found in self._signatures.items()}
        stream = QuestionStream(
            own,
            self._weights,
            self._steps[split],
            self._worlds[split],
            f"{self._seed}/{split}/{number}",
        )

        def row(candidate: Candidate) -> str:
            return formal_question(candidate, split, self._seed).task.model_dump_json()

        return write_part(directory, stream, row, quota)


def distinct_signatures(graph: KnowledgeGraph) -> Mapping[str, Sequence[Chain | Join]]:
    """Signatures by family, no two of which can write the same question.

    Parts remember nothing of each other: of two intersections that only differ in the order of
    their arms, one is left out.
    """
    chained = {f"chain-{length}": chains(graph, length) for length in range(1, 5)}
    joined = [join for join in intersections(graph) if join.arms[0] <= join.arms[1]]
    return {**chained, "intersection": joined, "union": unions(graph)}
