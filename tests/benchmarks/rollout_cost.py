"""What rollouts cost against size: tokens a second for rows, contexts and models.

    python -m tests.benchmarks.rollout_cost --threads 2

Rows of one prompt fill the context; then every row samples the last tokens, and only these are
timed: what is measured is decoding at that context, at full occupancy. Points whose keys and values
do not fit --memory-gb are left out and listed with the size that they would need.

The table grows by a line for each finished point (--out/points.csv), and a restarted run goes on
after the last; the plot is drawn from the table. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.benchmarks.keeping import provenance

SIZES = ("0.6m", "1m", "3m", "8m", "25m")
ROWS = (16, 64, 256, 1024)
CONTEXTS = (256, 1024, 4096)
SAMPLED = 24
"""Timed tokens of each row; the context is that of the last of them."""


@dataclass(frozen=True)
class Point:
    """A line of the table."""

    size: str
    parameters: int
    rows: int
    context: int
    tokens_per_s: float
    ms_per_step: float
    read_tokens_per_s: float
    """Of the shared prompt, which one row reads and the others take over, before."""
    cache_mb: float
    """Keys and values of all rows, were none shared."""
    peak_rss_mb: float


def main() -> None:
    """Measure what is missing, then tabulate and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    parser.add_argument("--architecture", choices=("qwen3", "lfm2"), default="qwen3")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--memory-gb", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/rollout_cost"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure_size(options.measure, options)
        return
    from tests.benchmarks.cost_figures import draw, headline, print_table

    options.out.mkdir(parents=True, exist_ok=True)
    for size in options.sizes:
        run_size(size, options)
    points = [p for p in read_points(options.out) if p.size in options.sizes]
    (options.out / "origin.json").write_text(json.dumps(provenance(options.threads), indent=1))
    print_table(points, left_out(options))
    draw(points, options.out / "rollout_cost.svg")
    print(json.dumps(headline(points)))


def run_size(size: str, options: argparse.Namespace) -> None:
    """Measure a size's missing points in a process of its own."""
    if not missing(size, options):
        return
    command = [sys.executable, "-m", "tests.benchmarks.rollout_cost", "--measure", size]
    command += ["--architecture", options.architecture, "--out", str(options.out)]
    command += ["--threads", str(options.threads), "--memory-gb", str(options.memory_gb)]
    command += ["--rows", *map(str, options.rows), "--contexts", *map(str, options.contexts)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        print(f"{size}: stopped with exit status {done.returncode}", file=sys.stderr)


def planned(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(rows, context) in rising order of work, so that a stopped run has the small ones."""
    return sorted(
        ((rows, context) for rows in options.rows for context in options.contexts),
        key=lambda point: point[0] * point[1],
    )


def missing(size: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Points of `size` that fit and are not in the table."""
    done = {(p.size, p.rows, p.context) for p in read_points(options.out)}
    return [
        (rows, context)
        for rows, context in planned(options)
        if (size, rows, context) not in done
        and cache_mb(size, rows, context) <= 1024 * options.memory_gb
    ]


def left_out(options: argparse.Namespace) -> dict[str, float]:
    """Points that do not fit, by name, with the MB of their keys and values."""
    return {
        f"{size} {rows}x{context}": cache_mb(size, rows, context)
        for size in options.sizes
        for rows, context in planned(options)
        if cache_mb(size, rows, context) > 1024 * options.memory_gb
    }


def cache_mb(size: str, rows: int, context: int) -> float:
    """Keys and values of every row in float32, were all layers attention and none shared."""
    from tests.benchmarks.rollout.model import SHAPES

    shape = SHAPES[size]
    return 2 * 4 * shape.layers * shape.hidden * rows * context / 2**20


def measure_size(size: str, options: argparse.Namespace) -> None:
    """Measure the missing points of one size, appending each to the table."""
    import torch

    from espalier.rollout.engines.lockstep import lockstep_engine
    from tests.benchmarks.rollout.episodes import LengthAlone
    from tests.benchmarks.rollout.measuring import peak_rss_mb
    from tests.benchmarks.rollout.model import benchmark_tokenizer, build_model

    torch.set_num_threads(options.threads)
    model = build_model(options.architecture, size, benchmark_tokenizer())
    parameters = sum(weight.numel() for weight in model.parameters())
    for rows, context in missing(size, options):
        engine = lockstep_engine(model, LengthAlone(), max_rows=rows)
        read_s, wall_s = asyncio.run(decode(engine, rows, context))
        point = Point(
            size=size,
            parameters=parameters,
            rows=rows,
            context=context,
            tokens_per_s=round(rows * SAMPLED / wall_s, 1),
            ms_per_step=round(1000 * wall_s / SAMPLED, 3),
            read_tokens_per_s=round((context - SAMPLED) / read_s, 1),
            cache_mb=round(cache_mb(size, rows, context), 1),
            peak_rss_mb=round(peak_rss_mb(), 1),
        )
        append(options.out / "points.csv", point)
        print(
            f"{size:5s} {rows:5d} rows, context {context:5d}: {point.tokens_per_s:8.0f} tok/s",
            flush=True,
        )


async def decode(engine, rows: int, context: int) -> tuple[float, float]:
    """Seconds to read the shared prompt, and seconds in which all rows sample `SAMPLED` tokens."""
    from espalier.rollout.engines.engine import Sampling

    prompt = [20 + n % 1000 for n in range(context - SAMPLED - 1)]
    async with engine.serving():
        started = time.perf_counter()
        sessions = await asyncio.gather(
            *(engine.open(prompt, Sampling(temperature=1.0, seed=n)) for n in range(rows))
        )
        await asyncio.gather(*(session.sample(max_tokens=1) for session in sessions))
        read_at = time.perf_counter()
        await asyncio.gather(*(session.sample(max_tokens=SAMPLED) for session in sessions))
        ended = time.perf_counter()
        for session in sessions:
            session.close()
    return read_at - started, ended - read_at


def append(path: Path, point: Point) -> None:
    """Add a line to the table; the first brings the head."""
    is_new = not path.is_file()
    with path.open("a", newline="") as table:
        writer = csv.DictWriter(table, [field.name for field in fields(Point)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(point))


def read_points(out: Path) -> list[Point]:
    """The table; a line that a kill cut short is left out and measured again."""
    path = out / "points.csv"
    if not path.is_file():
        return []
    kinds = {"size": str, "parameters": int, "rows": int, "context": int}
    points = []
    for row in csv.DictReader(path.open(newline="")):
        if all(row.get(field.name) for field in fields(Point)):
            points.append(Point(**{name: kinds.get(name, float)(row[name]) for name in row}))
    return points


if __name__ == "__main__":
    main()
