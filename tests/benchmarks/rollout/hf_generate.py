"""Hugging Face `generate`, once a turn over all rows, tools of all rows side by side in threads.

What one writes first: left-padded rows, a fresh cache every turn. It shares no prompt and waits
for the longest row of each turn and then for the slowest tool.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tests.benchmarks.rollout.generating import ClosesTurns, ForwardCounter
from tests.benchmarks.rollout.measuring import (
    Measurement,
    measure,
    options_of,
    peak_rss_mb,
    timed,
    unique_tokens,
)
from tests.benchmarks.rollout.script import TOOL_TURNS, Work, read_work
from tests.benchmarks.rollout.tokens import Row, called_key, result_tokens, rows_of


def main() -> None:
    """Roll all works out and report."""
    options = options_of(argparse.ArgumentParser(description=__doc__))
    first = read_work(options.works[0])
    torch.set_num_threads(first.threads)
    tokenizer = AutoTokenizer.from_pretrained(first.policy_dir)
    model = AutoModelForCausalLM.from_pretrained(first.policy_dir, dtype=torch.float32).eval()
    counter = ForwardCounter(model)

    def roll_out(work: Work) -> Measurement:
        counter.positions = 0
        torch.manual_seed(work.seed)
        rows = rows_of(work, tokenizer)
        contexts = [list(row.prompt_ids) for row in rows]
        wall_s = timed(lambda: play(model, tokenizer, rows, contexts, work.tool_s))
        prompts, results = [len(row.prompt_ids) for row in rows], result_tokens(rows)
        return Measurement(
            engine="hf-generate",
            wall_s=wall_s,
            action_tokens=sum(map(len, contexts)) - sum(prompts) - results,
            unique_tokens=unique_tokens(work, prompts, results),
            forwarded_tokens=counter.positions,
            peak_rss_mb=peak_rss_mb(),
        )

    measure(options.works, options.out, roll_out, first.group_size)


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Row],
    contexts: list[list[int]],
    tool_s: float,
) -> None:
    """All turns of all rows; `contexts` grow."""

    def tool(key: str) -> None:
        assert key
        time.sleep(tool_s)

    for turn in range(TOOL_TURNS + 1):
        actions = generate(model, contexts, [row.action_tokens[turn] for row in rows])
        for context, action in zip(contexts, actions, strict=True):
            context.extend(action)
        if turn == TOOL_TURNS:
            return
        with ThreadPoolExecutor(len(rows)) as pool:
            list(pool.map(tool, [called_key(tokenizer, action) for action in actions]))
        for context, row in zip(contexts, rows, strict=True):
            context.extend(row.result_ids[turn])


@torch.inference_mode()
def generate(
    model: PreTrainedModel, contexts: list[list[int]], lengths: list[int]
) -> list[list[int]]:
    """One turn of all rows: `lengths[b]` sampled tokens of row b, the last one the closing tag."""
    width = max(map(len, contexts))
    pad_id, closing_id = model.config.pad_token_id, model.config.eos_token_id
    token_ids = torch.tensor([[pad_id] * (width - len(ids)) + ids for ids in contexts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in contexts])
    written = model.generate(
        input_ids=token_ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=max(lengths),
        logits_processor=[ClosesTurns(lengths, width, closing_id)],
    )
    return [row[width : width + n].tolist() for row, n in zip(written, lengths, strict=True)]


if __name__ == "__main__":
    main()
