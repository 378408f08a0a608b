"""The script as token ids, for the contestants that are given ids."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from tests.benchmarks.rollout.script import TOOL, Episode, Work


class Row(NamedTuple):
    """One episode in ids; the same ids that a chat template gives for the whole conversation."""

    prompt_ids: list[int]
    action_tokens: tuple[int, ...]
    result_ids: list[list[int]]
    """What each tool call puts into the context, up to the start of the next turn."""


def rows_of(work: Work, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """All episodes of `work`, tokenised once."""
    return [_row(episode, tokenizer) for episode in work.episodes]


def result_tokens(rows: list[Row]) -> int:
    """Tokens that all tool calls put into contexts."""
    return sum(len(ids) for row in rows for ids in row.result_ids)


def called_key(tokenizer: PreTrainedTokenizerBase, action_ids: list[int]) -> str:
    """What a turn asks the tool for: the text between its tags."""
    text = str(tokenizer.decode(action_ids, skip_special_tokens=False))
    return text.removeprefix("<tool_call>").removesuffix("</tool_call>")


def _row(episode: Episode, tokenizer: PreTrainedTokenizerBase) -> Row:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": episode.prompt}],
        tools=[TOOL],
        add_generation_prompt=True,
        return_dict=False,
    )
    results = [
        tokenizer.encode(f"<|tool|>{result}<|assistant|>", add_special_tokens=False)
        for result in episode.results
    ]
    return Row(list(prompt), episode.action_tokens, results)
