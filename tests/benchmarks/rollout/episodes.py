"""The scripted episodes over any engine of `espalier.rollout`: coroutines, as in a roll-out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from espalier.rollout.engines.engine import Engine, Sampling
from tests.benchmarks.rollout.measuring import Measurement, peak_rss_mb, timed, unique_tokens
from tests.benchmarks.rollout.script import Work
from tests.benchmarks.rollout.tokens import Row, called_key, result_tokens, rows_of


class LengthAlone:
    """A stop rule that never stops: every turn has its scripted length."""

    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        return False


async def play_all(
    engine: Engine,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    *,
    tool_s: float,
    seed: int,
) -> int:
    """Play every row to its end, side by side; returns the tokens that were sampled."""

    async def play(number: int, row: Row) -> int:
        sampling = Sampling(temperature=1.0, seed=seed * 1_000_003 + number)
        session = await engine.open(row.prompt_ids, sampling)
        sampled = 0
        for turn, length in enumerate(row.action_tokens):
            action = await session.sample(max_tokens=length)
            sampled += len(action.token_ids)
            if turn < len(row.result_ids):
                assert called_key(tokenizer, list(action.token_ids))
                await asyncio.sleep(tool_s)
                session.observe(row.result_ids[turn])
        session.close()
        return sampled

    async with engine.serving():
        return sum(await asyncio.gather(*(play(n, row) for n, row in enumerate(rows))))


def measured_play(
    name: str, work: Work, engine: Engine, tokenizer: PreTrainedTokenizerBase
) -> Measurement:
    """Time one roll-out; the peak memory is this process's."""
    rows = rows_of(work, tokenizer)
    before = dataclasses.replace(engine.counters)
    wall_s = timed(
        lambda: asyncio.run(play_all(engine, rows, tokenizer, tool_s=work.tool_s, seed=work.seed))
    )
    prompts = [len(row.prompt_ids) for row in rows]
    return Measurement(
        engine=name,
        wall_s=wall_s,
        action_tokens=engine.counters.sampled - before.sampled,
        unique_tokens=unique_tokens(work, prompts, result_tokens(rows)),
        forwarded_tokens=engine.counters.forwarded - before.forwarded,
        peak_rss_mb=peak_rss_mb(),
    )
