"""Closed-book answers: what a policy answers from memory, without any tool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from espalier.config import ClosedBook
from espalier.dialects import DialectName
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import split_thought
from espalier.records import FinalAnswer, Message, Task, ToolCalls
from espalier.rewards.search_r1 import transcript_answer
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.waits import ENGINE_ACTION, ENGINE_PLACE


class ClosedBookQuestion(NamedTuple):
    """A task, and the examples that stand before its question."""

    task: Task
    told: ClosedBook


async def closed_book_answer(question: ClosedBookQuestion, context: EpisodeContext) -> str | None:
    """Return the answer in one greedy message of at most `episode.max_turn_tokens` tokens.

    The examples show how short an answer is: without them an untrained policy answers in a
    sentence. In a dialect with an answer tag, the prompt ends with that tag: a policy that was
    trained to search would call the tool otherwise.

    Returns:
        The answer; None if the message has none: it calls a tool (in a dialect without an answer
        tag), is empty, or the prompt leaves no room for it.
    """
    dialect, told = context.dialect, question.told
    prompt = (*_example_turns(told.examples, dialect), *question.task.prompt)
    prompt_ids = _without_tools(dialect, told.instructions).bare_prompt_ids(prompt)
    if not dialect.answer_opening:
        return stated_answer(await _message(question.task, prompt_ids, context), dialect)
    opened_ids = (*prompt_ids, *dialect.text_ids(dialect.answer_opening))
    message = dialect.message_text(await _message(question.task, opened_ids, context))
    return message.partition("<")[0].strip() or None


def _example_turns(examples: Sequence[tuple[str, str]], dialect: Dialect) -> list[Message]:
    turns: list[Message] = []
    for asked, answer in examples:
        said = dialect.syntax.write(FinalAnswer(answer), dialect.tools)
        turns += [Message(role="user", content=asked), Message(role="assistant", content=said)]
    return turns


async def _message(
    task: Task, context_ids: Sequence[int], context: EpisodeContext
) -> tuple[int, ...]:
    """Return the policy's message after `context_ids`; empty where there is no room for one."""
    limits, waits = context.limits, context.waits
    room = min(limits.max_turn_tokens, limits.max_tokens - len(context_ids))
    if room < 1:
        return ()
    with waits.wait(task.task_id, ENGINE_PLACE):
        session = await context.engine.open(context_ids, Sampling(temperature=0.0, seed=0))
    try:
        with waits.wait(task.task_id, ENGINE_ACTION):
            return (await session.sample(max_tokens=room)).token_ids
    finally:
        session.close()


@lru_cache(maxsize=4)
def _without_tools(dialect: Dialect, instructions: str) -> Dialect:
    name = cast("DialectName", dialect.syntax.name)
    return Dialect(dialect.tokenizer, (), name=name, instructions=instructions)


def stated_answer(token_ids: Sequence[int], dialect: Dialect) -> str | None:
    """Return the answer that a message gives.

    This is the text between answer tags, else the dialect's final answer, else the whole message
    after its thought.

    Returns:
        The answer; None if the message calls a tool or is empty.
    """
    end = str(dialect.tokenizer.eos_token or "")
    text = dialect.message_text(token_ids).removesuffix(end)
    tagged = transcript_answer(text, examples=0)
    if tagged is not None:
        return tagged or None
    match dialect.parse_text(text):
        case ToolCalls():
            return None
        case FinalAnswer(said):
            return said
        case _:
            return split_thought(text).rest or None
