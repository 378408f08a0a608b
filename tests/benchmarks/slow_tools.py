"""How long does the learner wait where tools are slow, in turns and beside it?

    python -m tests.benchmarks.slow_tools --run runs/demo --steps 60 --bounds 0 8 \\
        --publish-every 4 --set curriculum.screening_rollouts=0 rollout.max_rows=512

Starts from the warm policy and the curriculum of a finished run. Every search takes 0.01 to 2 s,
drawn evenly by its query. For each staleness bound (0 samples and learns in turns): the share of
wall time in which the learner had no admissible batch, the time of a step, the dev EM at the end.
A finished one keeps its result and the commit under --out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.benchmarks.arms import add_settings
from tests.benchmarks.keeping import keep, kept, provenance

QUICKEST_S, SLOWEST_S = 0.01, 2.0


class SlowSearch:
    """A search tool that takes its time; how long is a matter of the query alone."""

    def __init__(self, search):
        self._search = search

    def observation(self, query: str) -> str:
        """See `Searcher`."""
        time.sleep(random.Random(query).uniform(QUICKEST_S, SLOWEST_S))
        return self._search.observation(query)


class Result(NamedTuple):
    """What one run came to."""

    max_staleness: int
    seed: int
    threads: int
    wait_share: float
    seconds: float
    steps: int
    staleness_mean: float
    dev_em: float


def main() -> None:
    """Run every bound, then print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--profile", type=Path, default=Path("pipelines/profiles/tiny.toml"))
    parser.add_argument("--bounds", type=int, nargs="*", default=[0, 1, 4, 8])
    parser.add_argument("--publish-every", type=int, default=1, help="where the bound allows it")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/slow_tools"))
    add_settings(parser)
    options = parser.parse_args()
    results = []
    print(f"{'bound':>5}  {'seed':>4}  wait %  s/step  staleness  dev EM")
    for seed in range(options.seeds):
        for bound in options.bounds:
            result = result_of(options, bound, seed)
            results.append(result)
            print(
                f"{bound:>5}  {seed:>4}  {100 * result.wait_share:6.1f}  "
                f"{result.seconds / result.steps:6.2f}  {result.staleness_mean:9.2f}  "
                f"{result.dev_em:6.3f}",
                flush=True,
            )
    print(json.dumps({f"bound {bound}": _headline(results, bound) for bound in options.bounds}))


def result_of(options: argparse.Namespace, bound: int, seed: int) -> Result:
    """The kept result, or that of a run until now."""
    path = options.out / f"bound-{bound}-seed-{seed}.json"
    asked = {
        "run": str(options.run),
        "profile": options.profile.read_text(),
        "steps": options.steps,
        "publish_every": options.publish_every,
        "set": options.set,
    }
    rows = kept(path, asked)
    if rows is None:
        result = run(options, bound, seed)
        options.out.mkdir(parents=True, exist_ok=True)
        rows = [result._asdict()]
        keep(path, asked, rows, provenance(result.threads))
    return Result(**rows[0])


def _headline(results: list[Result], bound: int) -> dict[str, list[float]]:
    """Of every seed."""
    of_it = [result for result in results if result.max_staleness == bound]
    return {
        "wait_share": [round(result.wait_share, 3) for result in of_it],
        "seconds_per_step": [round(result.seconds / result.steps, 2) for result in of_it],
        "dev_em": [result.dev_em for result in of_it],
    }


def run(options: argparse.Namespace, bound: int, seed: int) -> Result:
    """Train with one bound."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.chain import STAGES
    from espalier.config import load_profile
    from espalier.environments import Environments
    from espalier.environments.search_qa import SearchQA, search_environments
    from espalier.knowledge.search import SearchTool
    from espalier.knowledge.views import View
    from espalier.records import NullTracker
    from espalier.training.checkpoint import CheckpointStore
    from espalier.training.parallel import Processes
    from espalier.training.rl.wiring import build_run

    profile = load_profile(
        options.profile,
        [
            f"seed={seed}",
            f"training.steps={options.steps}",
            f"training.evaluate_every={options.steps}",
            f"training.asynchronous.max_staleness={bound}",
            f"training.asynchronous.publish_every={min(options.publish_every, bound) or 1}",
            "rollout.tool_workers=2048",
            *options.set,
        ],
    )
    prepare_torch(profile.threads)
    inputs = {name: options.run / name for name in STAGES["train"].inputs}
    family = SearchQA(profile)

    def environments_over(view: View) -> Environments:
        search = SearchTool.open(inputs["knowledge"], view, profile.search)
        return search_environments(SlowSearch(search) if view == "train" else search, family)

    with TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), "benchmark")
        loop = build_run(profile, inputs, store, Processes(), environments_over).loop
        loop.run(NullTracker())
    history = loop.progress.history
    learned = [row for row in history if "staleness_mean" in row]
    return Result(
        max_staleness=bound,
        seed=seed,
        threads=profile.threads,
        wait_share=loop.waited_s / loop.seconds,
        seconds=loop.seconds,
        steps=options.steps,
        staleness_mean=sum(row["staleness_mean"] for row in learned) / max(1, len(learned)),
        dev_em=history[-1]["dev_em"],
    )


if __name__ == "__main__":
    main()
