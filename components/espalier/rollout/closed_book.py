"""Closed-book answers: what a policy says to a question from memory, where no tool is offered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from espalier.config import ClosedBook
from espalier.dialects import DialectName
from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import split_thought
from espalier.records import FinalAnswer, Message, Task, ToolCalls
from espalier.rewards import transcript_answer
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext
from espalier.rollout.waits import ENGINE_ACTION, ENGINE_PLACE


class ClosedBookQuestion(NamedTuple):
    """A task, and what stands before its question."""

    task: Task
    told: ClosedBook


async def closed_book_answer(question: ClosedBookQuestion, context: EpisodeContext) -> str | None:
    """The answer of one greedy message of at most `episode.max_turn_tokens` tokens.

    The examples show how short an answer is: without them a policy that was not trained answers in
    a sentence. In a dialect whose answers have a tag, the policy writes behind that tag: one that
    was trained to search would call the tool all the same.

    Returns:
        None where it states no answer: it calls a tool in a dialect without such a tag, says
        nothing, or has no room behind the prompt.
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
    """What the policy writes behind `context_ids`; nothing where it has no room."""
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
