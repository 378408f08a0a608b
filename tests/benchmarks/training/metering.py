"""What a trainer did in the timed steps: real tokens, and positions that it forwarded for them."""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass
class Throughput:
    """One trainer's timed steps."""

    trainer: str
    tokens: int
    """Of the trajectories: prompts, actions and tool results; padding is none of them."""
    positions: int
    """That went through the model, padding included."""
    wall_s: float
    peak_rss_mb: float

    @property
    def tokens_per_s(self) -> float:
        """Real tokens a second."""
        return self.tokens / self.wall_s


class Meter:
    """Counts positions and seconds from `start` to `stop`; `pause` takes seconds out."""

    def __init__(self, model: nn.Module) -> None:
        self.positions = 0
        self.wall_s = 0.0
        self._started = 0.0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def start(self) -> None:
        """Begin to count."""
        self.positions, self.wall_s = 0, 0.0
        self.resume()

    def pause(self) -> None:
        """Stop the clock for something that is not training."""
        self.wall_s += time.perf_counter() - self._started

    def resume(self) -> None:
        """Let the clock go on."""
        self._started = time.perf_counter()

    def throughput(self, trainer: str, tokens: int) -> Throughput:
        """What was counted; the clock is to be paused."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Throughput(trainer, tokens, self.positions, self.wall_s, peak)

    def _count(
        self, _: nn.Module, args: tuple[torch.Tensor, ...], named: dict[str, object]
    ) -> None:
        token_ids = args[0] if args else named["input_ids"]
        assert isinstance(token_ids, torch.Tensor)
        self.positions += token_ids.numel()


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a trainer's process."""
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def write_throughput(path: Path, throughput: Throughput) -> None:
    """Hand the result to the benchmark's own process."""
    path.write_text(json.dumps(asdict(throughput)))
