"""The checker over WebShaper's public rows, beside an independent count; and our own questions.

    python -m tests.benchmarks.webshaper_rows --rows webshaper.500.jsonl --knowledge RUN/knowledge

Every kind of fault with the rows that have it, twice: as the checker tells it and as
`webshaper_count` finds it without espalier. Rows that can be read are printed and compared with
what was read. The figures of rows without fault stand beside those of questions that the generator
draws from the knowledge artifact (the default one is made where none is given). A difference in
any count ends with exit code 1. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from espalier.config import Profile, SynthesisConfig
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest
from espalier_search.synthesis.questions import FormalQuestions, GrownQuestions
from espalier_search.synthesis.webshaper.generator import Generator, kind_weights
from espalier_search.synthesis.webshaper.notation import (
    FaultKind,
    FormalismError,
    parse,
    read_entries,
    rows_of,
)
from espalier_search.synthesis.webshaper.notation_checks import check, structure_of
from espalier_search.synthesis.webshaper.notation_files import structure_figures
from espalier_search.synthesis.webshaper.notation_queries import entries_of

from .webshaper_count import UNREADABLE, kinds_of

PUBLIC_ROWS = Path(__file__).parents[3] / "shared" / "data" / "webshaper" / "webshaper.500.jsonl"


def main() -> None:
    """Parse arguments, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=PUBLIC_ROWS)
    parser.add_argument("--knowledge", type=Path, help="knowledge artifact; made where missing")
    parser.add_argument("--questions", type=int, default=2000)
    options = parser.parse_args()
    lines = options.rows.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line)["formalization"] for line in lines]
    counts, same_rows = count(rows)
    turned = [round_trip(row) for row in rows]
    with tempfile.TemporaryDirectory() as scratch:
        knowledge = options.knowledge or Path(scratch) / "knowledge"
        if options.knowledge is None:
            ingest.run(Profile(), {}, knowledge, NullTracker())
        structures = compare(rows, knowledge, options.questions)
    summary = {
        "benchmark": "webshaper_rows",
        "rows": len(rows),
        "rows_by_kind": counts,
        "independent_count_agrees_on_rows": same_rows,
        "round_trips": turned.count("same"),
        "not_readable": turned.count("not readable"),
        "changed": turned.count("changed"),
        "structure": structures,
    }
    print(json.dumps(summary))
    if same_rows < len(rows) or "changed" in turned:
        sys.exit(1)


def count(rows: list[list[list[str]]]) -> tuple[dict[str, int], int]:
    """Print rows by kind, both counts; return ours and how many rows have equal kinds."""
    ours = [{fault.kind.value for fault in check(row)} for row in rows]
    theirs = [kinds_of(row) for row in rows]
    totals = Counter(kind for kinds in ours for kind in kinds)
    others = Counter(kind for kinds in theirs for kind in kinds)
    print(f"{'kind':24s}{'checker':>8s}{'count':>8s}")
    for kind in (*FaultKind, "without fault"):
        own, other = totals[kind], others[kind]
        if kind == "without fault":
            own, other = ours.count(set()), theirs.count(set())
        if own or other:
            print(f"{kind:24s}{own:8d}{other:8d}{'' if own == other else '  DIFFER'}")
    judged = len(rows) - sum(bool(read_entries(row).faults) for row in rows)
    other = sum(not kinds & UNREADABLE for kinds in theirs)
    print(f"{'judged as a whole':24s}{judged:8d}{other:8d}{'' if judged == other else '  DIFFER'}")
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"both find the same kinds in {same} of {len(rows)} rows\n")
    return {kind: totals[kind] for kind in sorted(totals)}, same


def round_trip(row: list[list[str]]) -> str:
    """Whether a row that can be read prints as it was."""
    try:
        return "same" if rows_of(parse(row)) == row else "changed"
    except FormalismError:
        return "not readable"


def compare(rows: list[list[list[str]]], knowledge: Path, num_questions: int) -> dict[str, object]:
    """Print the figures of public rows without fault beside those of drawn questions."""
    graph = KnowledgeGraph.load(knowledge)
    names = {entity_id: entity.name for entity_id, entity in graph.entities.items()}
    generator = Generator(graph, kind_weights(SynthesisConfig()), seed=0)
    funnel = Funnel()
    world = FormalQuestions(Profile(), knowledge, graph, funnel).world("train")
    growing = GrownQuestions(Profile(), knowledge, generator)
    sources = {
        "drawn": generator.generate("train", num_questions, world, funnel),
        "grown": growing.draw("train", num_questions, world, funnel),
    }
    figures = {
        "public": structure_figures([structure_of(parse(row)) for row in rows if not check(row)])
    }
    for name, found in sources.items():
        shapes = [structure_of(entries_of(candidate.query, names)) for candidate in found]
        figures[name] = structure_figures(shapes)
    print(f"{'mean (max)':12s}{''.join(f'{name:>16s}' for name in figures)}")
    for figure in figures["public"]:
        cells = [f"{f[figure]['mean']:.2f} ({f[figure]['max']:.0f})" for f in figures.values()]
        print(f"{figure:12s}{''.join(f'{cell:>16s}' for cell in cells)}")
    return dict(figures)


if __name__ == "__main__":
    main()
