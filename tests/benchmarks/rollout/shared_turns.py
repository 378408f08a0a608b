"""What it pays that attempts at one task forward their common turns once: tokens a second, ids.

    python -m tests.benchmarks.rollout.shared_turns --run runs/demo

The policy and the tasks of a finished run, its tools and its rollout settings. Both engines play
the same episodes with the same seeds, in turns, so that what else the machine does falls on both:
one shares prompts alone, the other whole turns. Before each pair the episodes are played once
untimed, because tools keep answers: the second engine would find what the first had asked for.
Two cases:

groups      16 tasks with 16 attempts each, as a step of training samples them
singles     256 tasks with one attempt each: no context is shared, and finding that out has a price

ratio       tokens sampled a second of the engine that shares turns, over the other's; of processor
            time, the tools' included, which a busy machine changes less than wall time
engine      the same of the engine's steps alone, without tools, parsing and records
equal       sampled tokens that are the same in both, of all; and the largest difference between the
            log-probs that they were recorded with, beside that between two runs of the engine that
            shares prompts alone, with 256 and with 16 rows: products round by their shape
forwarded   tokens that went through the model, for each token sampled
raw         what the model's forward alone would reach: the seconds of the same calls of the decoder
            with nothing around them, over those of the whole rollout; and the seconds that its
            matrix products alone need on this machine, over the same

The last line is one JSON object. About four minutes with one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from espalier.config import Profile
from espalier.determinism import prepare_torch
from espalier.dialects.dialect import Dialect
from espalier.environments import Environments, family_of
from espalier.policy.loading import Policy, load_policy
from espalier.records import Task
from espalier.records.task import read_tasks
from espalier.records.trajectory import Trajectory
from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.lockstep import LockstepEngine, decoder_for
from espalier.rollout.engines.pages import Ints
from espalier.rollout.engines.speculation import SpeculatedSessions
from espalier.rollout.roller import Roller, dialect_of
from tests.benchmarks.finished_run import add_run_options, profile_of_run
from tests.benchmarks.keeping import provenance
from tests.benchmarks.rollout.matmul import matmul_limit_s

ROWS = 256
CASES = {"groups": 16, "singles": 1}
"""Attempts at each task; there are as many tasks as fill the rows."""


_CLOSE = 1e-5


class RecordedDecoder:
    """Passes calls on, and keeps them for `replayed_s`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.calls: list[Callable[[Decoder], object]] = []
        self.projected = 0
        """Positions whose logits were asked for."""
        self._decoder = decoder_for(model)

    @property
    def rewinds(self) -> bool:
        return self._decoder.rewinds

    def begin(self) -> None:
        self._decoder.begin()

    def end(self) -> None:
        self._decoder.end()

    def advance(
        self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints, lasts_R: Ints | None = None
    ) -> Tensor:
        read = (slots_R, counts_R, token_ids_M, lasts_R)
        self.calls.append(lambda it: it.logits(it.advance(*read)))
        return self._decoder.advance(*read)

    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        self.calls.append(lambda it: it.rewind(slots_R, counts_R))
        self._decoder.rewind(slots_R, counts_R)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        self.projected += len(hidden_NH)
        return self._decoder.logits(hidden_NH)

    def fork(self, source: int, targets: Sequence[int]) -> None:
        self.calls.append(lambda it: it.fork(source, targets))
        self._decoder.fork(source, targets)

    def release(self, slot: int) -> None:
        self.calls.append(lambda it: it.release(slot))
        self._decoder.release(slot)

    def replayed_s(self) -> float:
        """Processor seconds of the recorded calls by themselves."""
        self._decoder.begin()
        started = time.process_time()
        for call in self.calls:
            call(self._decoder)
        seconds = time.process_time() - started
        self._decoder.end()
        return seconds


class TimedEngine(LockstepEngine):
    """Counts the processor seconds of its steps."""

    step_s = 0.0

    def _step(self) -> None:
        started = time.process_time()
        super()._step()
        self.step_s += time.process_time() - started


@dataclass(frozen=True)
class Contestant:
    """An engine, and what plays on it."""

    engine: TimedEngine
    decoder: RecordedDecoder
    roller: Roller

    @classmethod
    def of(
        cls,
        policy: Policy,
        environments: Environments,
        profile: Profile,
        *,
        rows: int = ROWS,
        shares_turns: bool = False,
        speculation: SpeculatedSessions = "off",
        dialect: Dialect | None = None,
    ) -> Contestant:
        decoder = RecordedDecoder(policy.model)
        dialect = dialect or dialect_of(policy.tokenizer, environments, profile)
        engine = TimedEngine(
            policy.model,
            decoder,
            dialect,
            max_rows=rows,
            shares_turns=shares_turns,
            speculation=speculation,
        )
        return cls(engine, decoder, Roller(engine, dialect, environments, profile))

    def play(
        self, tasks: Sequence[Task], samples: int, seed: int, temperature: float = 1.0
    ) -> Played:
        """One rollout."""
        self.decoder.calls.clear()
        self.decoder.projected = 0
        counters = self.engine.counters
        sampled, forwarded = counters.sampled, counters.forwarded
        self.engine.step_s = 0.0
        wall, processor = time.perf_counter(), time.process_time()
        trajectories = self.roller.roll_out(
            tasks, samples=samples, temperature=temperature, seed=seed
        )
        return Played(
            trajectories,
            counters.sampled - sampled,
            counters.forwarded - forwarded,
            time.process_time() - processor,
            self.engine.step_s,
            time.perf_counter() - wall,
        )


class Played(NamedTuple):
    """A rollout, and what it took."""

    trajectories: list[Trajectory]
    sampled: int
    forwarded: int
    processor_s: float
    engine_s: float
    wall_s: float


class Compared(NamedTuple):
    """Two rollouts of the same episodes, token by token."""

    tokens: int
    equal: int
    largest_difference: float
    """Of log-probs, in episodes that are wholly equal."""
    beyond: int
    """Log-probs of those that differ by more than `_CLOSE`."""

    @classmethod
    def of(cls, one: Played, other: Played) -> Compared:
        tokens, equal, beyond, largest = 0, 0, 0, 0.0
        for ours, theirs in zip(one.trajectories, other.trajectories, strict=True):
            tokens += sum(ours.action_mask)
            pairs = zip(ours.token_ids, theirs.token_ids, ours.action_mask, strict=False)
            equal += sum(is_action for a, b, is_action in pairs if a == b)
            if ours.token_ids == theirs.token_ids:
                apart = np.array(ours.behavior_logprobs) - np.array(theirs.behavior_logprobs)
                largest = max(largest, float(abs(apart).max()))
                beyond += int((abs(apart) > _CLOSE).sum())
        return cls(tokens, equal, largest, beyond)


def ratio_figures(pairs: Sequence[tuple[Played, ...]]) -> dict[str, object]:
    """Seconds of each pair's first rollout over those of its second."""
    ratios = {
        name: [getattr(one, name) / getattr(other, name) for one, other in pairs]
        for name in ("processor_s", "engine_s", "wall_s")
    }
    return {
        "ratio": round(statistics.median(ratios["processor_s"]), 3),
        "ratios": sorted(round(ratio, 3) for ratio in ratios["processor_s"]),
        "engine_ratio": round(statistics.median(ratios["engine_s"]), 3),
        "engine_ratios": sorted(round(ratio, 3) for ratio in ratios["engine_s"]),
        "wall_ratio": round(statistics.median(ratios["wall_s"]), 3),
    }


def agreement_figures(compared: Sequence[Compared]) -> dict[str, object]:
    """How far the rollouts of all pairs agree."""
    return {
        "tokens": sum(one.tokens for one in compared),
        "equal": sum(one.equal for one in compared),
        "largest_logprob_difference": max(one.largest_difference for one in compared),
        "logprobs_beyond_1e-5": sum(one.beyond for one in compared),
    }


@dataclass
class Found:
    """What a case showed so far: pairs of rollouts that share prompts, and that share turns."""

    name: str
    pairs: list[tuple[Played, Played]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    raw_shares: list[float] = field(default_factory=list)
    matmul_shares: list[float] = field(default_factory=list)
    rounding: Compared | None = None
    """The engine that shares prompts alone, with many and with few rows."""

    def summary(self) -> dict[str, object]:
        """Its figures."""
        by_engine = {"prompts": 0, "turns": 1}
        return {
            "case": self.name,
            **ratio_figures(self.pairs),
            "tokens_per_processor_s": {
                name: round(
                    statistics.median(p[at].sampled / p[at].processor_s for p in self.pairs)
                )
                for name, at in by_engine.items()
            },
            "forwarded_per_sampled": {
                name: round(
                    statistics.fmean(p[at].forwarded / p[at].sampled for p in self.pairs), 2
                )
                for name, at in by_engine.items()
            },
            "raw_share": round(statistics.median(self.raw_shares), 3),
            "matmul_share": round(statistics.median(self.matmul_shares), 3),
            **agreement_figures(self.compared),
            "by_rows_alone": self.rounding and self.rounding._asdict(),
        }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_run_options(parser)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    run: Path = options.run
    profile = profile_of_run(options)
    prepare_torch(options.threads)
    policy = load_policy(run / "trained_policy" / "policy")
    tasks = read_tasks(run / "curriculum" / "tasks.jsonl")
    with family_of(profile).environments(run / "knowledge") as environments_over:
        environments = environments_over("train")
        prompts = Contestant.of(policy, environments, profile)
        turns = Contestant.of(policy, environments, profile, shares_turns=True)
        fewer_rows = Contestant.of(policy, environments, profile, rows=16)
        found = []
        for name in options.cases:
            case, samples = Found(name), CASES[name]
            for seed in range(-1, options.seeds):
                count = ROWS // samples
                chosen = tasks[(seed + 1) * count : (seed + 2) * count]
                if seed < 0:  # to warm up
                    for contestant in (turns, prompts):
                        warm = contestant.play(chosen, samples, seed)
                    fewer = fewer_rows.play(chosen, samples, seed)
                    case.rounding = Compared.of(warm, fewer)
                else:
                    measure(case, prompts, turns, (chosen, samples, seed))
            found.append(case.summary())
            print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"benchmark": "shared_turns", **provenance(options.threads), "cases": found}))


def measure(
    case: Found, prompts: Contestant, turns: Contestant, episodes: tuple[list[Task], int, int]
) -> None:
    """Play the episodes on both engines, first on the one and next time first on the other."""
    turns.play(*episodes)
    if len(case.pairs) % 2:
        shared = turns.play(*episodes)
        alone = prompts.play(*episodes)
    else:
        alone = prompts.play(*episodes)
        shared = turns.play(*episodes)
    case.pairs.append((alone, shared))
    case.compared.append(Compared.of(alone, shared))
    case.raw_shares.append(turns.decoder.replayed_s() / shared.processor_s)
    products_s = matmul_limit_s(
        turns.decoder.model,
        forwarded=shared.forwarded,
        sampled=turns.decoder.projected,
        rows=max(1, shared.forwarded // len(turns.decoder.calls)),
    )
    case.matmul_shares.append(products_s / shared.processor_s)


if __name__ == "__main__":
    main()
