"""TRL's `GRPOTrainer` with `environment_factory`, without vLLM: the path that runs on a CPU.

It is TRL's slowest path: `generate` over left-padded rows, whose cache is thrown away between
turns, so that every turn reads the whole context again. `--tools async` declares the tool as a
coroutine, which TRL then runs for all rows at once; plain functions it calls one after the other.
Runs in an environment of its own (`python -m tests.benchmarks.peers trl`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.benchmarks.rollout.generating import ClosesTurns, ForwardCounter
from tests.benchmarks.rollout.measuring import (
    Measurement,
    measure,
    options_of,
    peak_rss_mb,
    timed,
    unique_tokens,
)
from tests.benchmarks.rollout.script import TOOL_TURNS, Episode, Work, read_work

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "lookup", "arguments": {"key": "{content}"}},
            },
        },
    },
}
"""How transformers' parser finds the call in a turn."""


def main() -> None:
    """Roll all works out and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", choices=("sync", "async"), default="sync")
    options = options_of(parser)
    first = read_work(options.works[0])
    torch.set_num_threads(first.threads)
    contestant = Contestant(first, options.tools)
    measure(options.works, options.out, contestant.roll_out, first.group_size)


class _Rows:
    """Which row an environment instance plays: TRL resets them in row order for every batch."""

    def __init__(self, work: Work) -> None:
        self.begin(work)

    def begin(self, work: Work) -> None:
        self.work = work
        self._next = iter(work.episodes)

    def take(self) -> Episode:
        return next(self._next)


def environment(rows: _Rows, tools: str) -> type:
    """An environment class whose tool says what the script says."""

    class Lookup:
        def reset(self, **_: object) -> None:
            self._results = iter(rows.take().results)

        def get_reward(self) -> float:
            return 0.0

        def lookup(self, key: str) -> str:
            """
            Look a key up.

            Args:
                key: What to look up.

            Returns:
                What was found.
            """
            time.sleep(rows.work.tool_s)
            return next(self._results)

    class AsyncLookup(Lookup):
        async def lookup(self, key: str) -> str:
            await asyncio.sleep(rows.work.tool_s)
            return next(self._results)

    AsyncLookup.lookup.__doc__ = Lookup.lookup.__doc__
    return AsyncLookup if tools == "async" else Lookup


def build_trainer(work: Work, rows: _Rows, tools: str) -> GRPOTrainer:
    """A trainer whose batch is all rows of `work`."""
    tokenizer = AutoTokenizer.from_pretrained(work.policy_dir)
    tokenizer.response_template = RESPONSE_TEMPLATE
    prompts = [row.prompt for row in work.episodes[:: work.group_size]]
    data = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in prompts]
    config = GRPOConfig(
        output_dir=str(Path(work.policy_dir).parent / "trl"),
        per_device_train_batch_size=len(work.episodes),
        num_generations=work.group_size,
        max_completion_length=2048,  # far above what the script asks for
        max_tool_calling_iterations=TOOL_TURNS,
        temperature=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        seed=work.seed,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work.policy_dir, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        environment_factory=environment(rows, tools),
    )


class Contestant:
    """A trainer, and hooks that script turn lengths, count positions and time the rollout."""

    def __init__(self, work: Work, tools: str) -> None:
        self._name = f"trl-{tools}"
        self._rows = _Rows(work)
        self._trainer = build_trainer(work, self._rows, tools)
        self._closing_id = self._trainer.processing_class.eos_token_id
        self._counter = ForwardCounter(self._trainer.model)
        self._rollout = self._trainer._generate
        self._generate = self._trainer.model.generate
        self._trainer._generate = self._timed_rollout
        self._trainer.model.generate = self._scripted_generate
        self._trainer.model.train()
        self._wall_s = 0.0
        self._results: tuple[list[list[int]], ...] = ()

    def roll_out(self, work: Work) -> Measurement:
        """One batch: `_generate` is the rollout, without the scoring that follows it."""
        self._rows.begin(work)
        self._counter.positions = 0
        torch.manual_seed(work.seed)
        inputs = [{"prompt": [{"role": "user", "content": row.prompt}]} for row in work.episodes]
        self._trainer._generate_and_score_completions(inputs)
        prompt_ids, completion_ids, tool_mask = self._results
        actions = sum(map(sum, tool_mask))
        assert actions == work.action_tokens, (actions, work.action_tokens)
        results = sum(map(len, completion_ids)) - actions
        return Measurement(
            engine=self._name,
            wall_s=self._wall_s,
            action_tokens=actions,
            unique_tokens=unique_tokens(work, [len(ids) for ids in prompt_ids], results),
            forwarded_tokens=self._forwarded,
            peak_rss_mb=peak_rss_mb(),
        )

    def _timed_rollout(self, prompts: list[object]) -> tuple[object, ...]:
        kept: list[tuple[object, ...]] = []
        self._wall_s = timed(lambda: kept.append(self._rollout(prompts)))
        self._forwarded = self._counter.positions
        self._results = kept[0][:3]
        return kept[0]

    def _scripted_generate(self, input_ids: torch.Tensor, **named: object) -> torch.Tensor:
        """End each row's turn where the script says; which turn it is, its earlier calls tell."""
        episodes = self._rows.work.episodes
        turns = (input_ids == self._closing_id).sum(dim=1).tolist()
        assert len(turns) == len(episodes), "a row left before its last turn"
        lengths = [row.action_tokens[turn] for row, turn in zip(episodes, turns, strict=True)]
        closes = ClosesTurns(lengths, input_ids.shape[1], self._closing_id)
        return self._generate(input_ids=input_ids, logits_processor=[closes], **named)


if __name__ == "__main__":
    main()
