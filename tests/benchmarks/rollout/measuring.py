"""What every contestant reports, and how it measures itself. Standard library alone."""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.benchmarks.rollout.script import Work, read_work


@dataclass
class Measurement:
    """One roll-out of all episodes by one contestant; loading and warming up are not in it."""

    engine: str
    wall_s: float
    action_tokens: int
    unique_tokens: int
    """Prompts once a group, tool results and actions: what any engine forwards at least once."""
    forwarded_tokens: int
    """Positions that went through the model, padding included where an engine pads."""
    peak_rss_mb: float
    details: dict[str, object] = field(default_factory=dict)


def unique_tokens(work: Work, prompt_lengths: Sequence[int], result_tokens: int) -> int:
    """Of a work whose rows have prompts of `prompt_lengths` and tool results in total."""
    return sum(prompt_lengths[:: work.group_size]) + result_tokens + work.action_tokens


def peak_rss_mb() -> float:
    """Peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a contestant: several works on one policy, one line of results for each."""
    parser.add_argument("--works", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def measure(
    works: Sequence[Path], out: Path, roll_out: Callable[[Work], Measurement], warm_rows: int
) -> None:
    """Warm up on a few rows, then measure every work and write each result at once."""
    first = read_work(works[0])
    roll_out(replace(first, tool_s=0.0, episodes=first.episodes[:warm_rows]))
    with out.open("w") as lines:
        for path in works:
            lines.write(json.dumps(asdict(roll_out(read_work(path)))) + "\n")
            lines.flush()
