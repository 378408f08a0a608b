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
    """A task, and the instruction that stands before its question."""

    task: Task
    instructions: str


async def closed_book_answer(question: ClosedBookQuestion, context: EpisodeContext) -> str | None:
    """The answer of one greedy message of at most `episode.max_turn_tokens` tokens.

    In a dialect whose answers have a tag, a policy that writes none is asked again behind its
    thought and that tag, so that it has to say what it knows, and no more than that: one that was
    trained to search calls the tool all the same, or goes on with a plan in words, and one that was
    not trained answers in a sentence.

    Returns:
        None where it states no answer: it calls a tool in a dialect without such a tag, says
        nothing, or has no room behind the prompt.
    """
    dialect = context.dialect
    prompt_ids = _without_tools(dialect, question.instructions).bare_prompt_ids(
        question.task.prompt
    )
    message = await _message(question.task, prompt_ids, context)
    written = dialect.message_text(message)
    is_tagged = transcript_answer(written, examples=0) is not None
    if is_tagged or not message or not dialect.answer_opening:
        return stated_answer(message, dialect)
    calls = [written.find(tag) for tag in dialect.kind_markers if tag in written]
    opening = dialect.text_ids(written[: min(calls, default=0)] + dialect.answer_opening)
    forced = await _message(question.task, (*prompt_ids, *opening), context)
    return dialect.message_text(forced).partition("<")[0].strip() or None


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
