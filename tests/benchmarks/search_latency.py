"""How long a query takes: `python -m tests.benchmarks.search_latency`.

Prints one line per view and, as its last line, one JSON object with all figures.
"""

import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from espalier.config import Profile, SearchConfig
from espalier.records import NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest
from espalier_search.knowledge import SearchTool

NUM_QUERIES = 5000


def main() -> None:
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "knowledge"
        started = time.perf_counter()
        manifest = ingest.run(Profile(), {}, directory, NullTracker())
        ingest_s = time.perf_counter() - started
        queries = _queries(KnowledgeGraph.load(directory))
        for view in ("train", "full"):
            tool = SearchTool.open(directory, view, SearchConfig())
            figures[view] = _latency(tool, queries, manifest.rows[f"{view}_documents"])
            shown = "  ".join(f"{name} {value:g}" for name, value in figures[view].items())
            print(f"{view:6}{shown}")
    print(json.dumps({"ingest_s": round(ingest_s, 2), "views": figures}, sort_keys=True))


def _queries(graph: KnowledgeGraph) -> list[str]:
    triples = random.Random(0).sample(list(graph.triples()), NUM_QUERIES)
    pairs = ((graph.entities[t.subject].name, graph.relations[t.relation].label) for t in triples)
    return list(dict.fromkeys(f"{name} {label}" for name, label in pairs))


def _latency(tool: SearchTool, queries: list[str], num_documents: int) -> dict[str, float]:
    milliseconds = []
    for query in queries:
        started = time.perf_counter()
        tool.search(query)
        milliseconds.append(1000 * (time.perf_counter() - started))
    p50, p95 = np.percentile(milliseconds, [50, 95])
    return {
        "documents": num_documents,
        "queries": len(queries),
        "p50_ms": round(float(p50), 3),
        "p95_ms": round(float(p95), 3),
    }


if __name__ == "__main__":
    main()
