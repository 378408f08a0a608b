"""Closed-book answers: what a policy says to a question from memory, where no tool is offered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from espalier.dialects import DialectName
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import split_thought
from espalier.records import FinalAnswer, Task, ToolCalls
from espalier.rewards import transcript_answer
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.waits import ENGINE_ACTION, ENGINE_PLACE


class ClosedBookQuestion(NamedTuple):
    """A task, and what the policy is told before its prompt."""

    task: Task
    instructions: str


async def closed_book_answer(question: ClosedBookQuestion, context: EpisodeContext) -> str | None:
    """The answer of one greedy message of at most `episode.max_turn_tokens` tokens.

    Returns:
        None where the message says nothing or calls a tool all the same, or where the prompt does
        not fit into the context.
    """
    limits, waits, task = context.limits, context.waits, question.task
    prompt_ids = _without_tools(context.dialect, question.instructions).bare_prompt_ids(task.prompt)
    room = min(limits.max_turn_tokens, limits.max_tokens - len(prompt_ids))
    if room < 1:
        return None
    with waits.wait(task.task_id, ENGINE_PLACE):
        session = await context.engine.open(prompt_ids, Sampling(temperature=0.0, seed=0))
    try:
        with waits.wait(task.task_id, ENGINE_ACTION):
            message = await session.sample(max_tokens=room)
    finally:
        session.close()
    return stated_answer(message.token_ids, context.dialect)


@lru_cache(maxsize=4)
def _without_tools(dialect: Dialect, instructions: str) -> Dialect:
    name = cast("DialectName", dialect.syntax.name)
    return Dialect(dialect.tokenizer, (), name=name, instructions=instructions)


def stated_answer(token_ids: Sequence[int], dialect: Dialect) -> str | None:
    """The answer that a message states.

    What stands between answer tags, else the final answer by the dialect, else all of the message
    behind its thought.

    Returns:
        None where the message calls a tool or says nothing.
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
