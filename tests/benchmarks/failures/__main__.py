"""Run or score the library: see the package's docstring."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.failures import __doc__ as what
from tests.benchmarks.failures.runs import OUT, path_of


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.failures",
        description=what,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what is missing")
    run.add_argument("--kinds", nargs="*", help="names of kinds; default: all")
    run.add_argument("--seeds", nargs="*", type=int, default=list(range(5)))
    run.add_argument("--minutes", type=float, default=90.0, help="no run is begun after them")
    run.add_argument(
        "--model", help="language model to train, by its name; default: a small policy"
    )
    run.add_argument("--out", type=Path, default=OUT, help="a folder of its own for each model")
    show = commands.add_parser("show", help="train runs to look at with `espalier ui`")
    show.add_argument("--kinds", nargs="*", help="names of kinds; default: all")
    show.add_argument("--seeds", nargs="*", type=int, default=[0])
    show.add_argument("--out", type=Path, default=OUT)
    show.add_argument("--runs", type=Path, required=True, help="new folder of the runs to look at")
    score = commands.add_parser("score", help="print the table of detection")
    score.add_argument("--out", type=Path, default=OUT)
    rescue = commands.add_parser("rescue", help="train the same with responses, and compare")
    rescue.add_argument("--kinds", nargs="*", help="names of kinds; default: all")
    rescue.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    rescue.add_argument("--minutes", type=float, default=40.0, help="0 trains nothing")
    rescue.add_argument("--out", type=Path, default=OUT)
    cost = commands.add_parser("cost", help="measure what detection takes of a step")
    cost.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.command == "score":
        from tests.benchmarks.failures.score import report

        report(options.out)
        return
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    prepare_torch(1)
    if options.command == "run":
        train(options)
    elif options.command == "show":
        train_to_look_at(options)
    elif options.command == "rescue":
        train_and_compare(options)
    else:
        print_cost(options.out)


def print_cost(out: Path) -> None:
    """Print the share of a step that detection takes."""
    from tests.benchmarks.failures.training import measured_cost

    cost = measured_cost(out)
    share = (cost.attempt_figures + cost.detectors) / cost.step
    print(
        f"processor ms a step of 64 attempts: {1e3 * cost.step:.0f}, of which figures of attempts "
        f"{1e3 * cost.attempt_figures:.2f} and detectors {1e3 * cost.detectors:.2f}: {share:.1%}"
    )


def train(options: argparse.Namespace) -> None:
    """Train the missing runs in turn, seed by seed, so that an early end leaves every kind."""
    from tests.benchmarks.failures.kinds import KINDS, settings_of
    from tests.benchmarks.failures.training import run_one

    started = time.monotonic()
    for kind, seed in plan(options.kinds or list(KINDS), options.seeds):
        if path_of(options.out, kind, seed).is_file():
            continue
        if time.monotonic() - started > 60 * options.minutes:
            print("the time is up: the same command goes on", flush=True)
            return
        settings = settings_of(kind, seed)
        path = run_one(
            kind,
            seed,
            options.out,
            settings=settings,
            name=f"{kind}-{seed}",
            model=options.model,
        )
        print(f"{time.strftime('%H:%M:%S')} {path}", flush=True)


def train_to_look_at(options: argparse.Namespace) -> None:
    """Train runs whose folders' names do not tell what goes wrong; a file says it."""
    from tests.benchmarks.failures.kinds import KINDS, settings_of
    from tests.benchmarks.failures.training import run_one

    runs = [(kind, seed) for seed in options.seeds for kind in options.kinds or list(KINDS)]
    random.Random(0).shuffle(runs)
    options.runs.mkdir(parents=True)
    for number, (kind, seed) in enumerate(runs, 1):
        name = f"run-{number:02}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "warm").symlink_to(options.out.resolve() / "warm")
            settings, shown = settings_of(kind, seed), options.runs / name
            run_one(kind, seed, Path(folder), settings=settings, name=name, shown=shown)
        with (options.runs / "kinds.txt").open("a") as kinds:
            print(f"{name} {kind} {seed}", file=kinds)
        print(f"{time.strftime('%H:%M:%S')} {shown}", flush=True)


def train_and_compare(options: argparse.Namespace) -> None:
    """Train what the comparison of acting runs misses, and print it."""
    from tests.benchmarks.failures.kinds import KINDS
    from tests.benchmarks.failures.rescue import missing, report
    from tests.benchmarks.failures.training import run_one

    started = time.monotonic()
    runs = plan(options.kinds or list(KINDS), options.seeds)
    for one in missing(options.out, runs):
        if time.monotonic() - started > 60 * options.minutes:
            print("the time is up: the same command goes on", flush=True)
            break
        path = run_one(one.kind, one.seed, options.out, settings=one.settings, name=one.name)
        print(f"{time.strftime('%H:%M:%S')} {path}", flush=True)
    report(options.out, runs)


def plan(kinds: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """The runs in their order: an early end leaves some of every kind.

    For each seed of the failing kinds there are eight healthy runs, among them in turn.
    """
    runs: list[tuple[str, int]] = []
    failing = [kind for kind in kinds if kind != "healthy"]
    for seed in seeds:
        of_seed = [(kind, seed) for kind in failing]
        if "healthy" in kinds:
            every = max(1, -(-len(failing) // HEALTHY_PER_SEED))
            for number in range(HEALTHY_PER_SEED):
                of_seed.insert(number * (every + 1), ("healthy", HEALTHY_PER_SEED * seed + number))
        runs += of_seed
    return runs


HEALTHY_PER_SEED = 8


if __name__ == "__main__":
    main()
