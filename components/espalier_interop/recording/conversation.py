"""Converts the messages of a request to token ids, and reuses those that were sampled.

A conversation alternates between what the policy reads and what it wrote. What it reads is encoded
as an episode's observations are; an assistant message that equals an answer of this attempt keeps
its sampled tokens. So the prompt of a continuing call begins with the tokens of the call before,
whatever a chat template would render for the whole conversation.

An agent may leave out the thought, or white space around the text. Any other change of an answer is
drift: tokens that were sampled under one context would be trained under another. `edits` says
whether that fails the attempt, or begins a branch whose changed message is read and not trained. An
assistant message that the policy did not answer with (an example, another model's message, one kept
by compaction) begins a branch as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from espalier.dialects.dialect import Dialect
from espalier.records import Message, PolicyError, action_of
from espalier.wire.requests import Refusal
from espalier_interop.recording.graph import PrefixGraph, RecordedCall, id_bytes


class DriftedError(Exception):
    """The agent changed a message of the policy, or its place; the error text names it."""


class Conversation(NamedTuple):
    """The prompt of a call."""

    messages: tuple[Message, ...]
    """Messages of the request. Those that the call before has are the same objects: one copy of the
    history saves memory, and work of the garbage collector, which delays all open calls."""
    prompt_ids: tuple[int, ...]
    prompt: bytes
    """The same token ids, as the bytes of `id_bytes`."""
    foreign: int
    """Number of assistant messages that are no answer of the attempt."""


def read_conversation(
    messages: Sequence[Message], graph: PrefixGraph, dialect: Dialect, *, branches_on_edits: bool
) -> Conversation:
    """Return the token ids of a conversation, up to where the policy is to write.

    Args:
        messages: messages of the request.
        graph: calls of the attempt so far.
        dialect: dialect of the policy, with the request's tools.
        branches_on_edits: whether a changed message begins a branch instead of raising.

    Raises:
        Refusal: the conversation does not alternate, or cannot be written in the dialect.
        DriftedError: a message of the policy was changed.
    """
    turns = _turns(messages)
    first = _encoded(turns[0], dialect, is_first=True)
    ids = list(first)
    prompt = id_bytes(first)
    foreign = 0
    answers: list[RecordedCall | None] = []
    for wrote, read in zip(turns[1::2], turns[2::2], strict=True):
        message = wrote[0]
        found = graph.answer_of(message, prompt)
        answers.append(found)
        if found is not None:
            spoken = found.answer_ids if found.stopped else (*found.answer_ids, *dialect.end_ids)
        elif not branches_on_edits and (edited := _edited(message, graph, prompt)):
            raise DriftedError(_told(message, edited.said))
        else:
            foreign += 1
            spoken = _written(message, dialect)
        new = (*spoken, *_encoded(read, dialect, is_first=False))
        ids += new
        prompt += id_bytes(new)
    return Conversation(_kept_once(messages, answers), tuple(ids), prompt, foreign)


def _kept_once(
    messages: Sequence[Message], answers: Sequence[RecordedCall | None]
) -> tuple[Message, ...]:
    """Return the messages; those that equal earlier ones are replaced by the earlier objects.

    Args:
        messages: messages of a request.
        answers: the recorded call of each assistant message. These were compared as JSON, as a
            comparison of messages takes 1 and 1.0 as equal.
    """
    before = answers[-1].asked if answers and answers[-1] is not None else ()
    found = iter(answers)
    kept: list[Message] = []
    for place, message in enumerate(messages):
        if message.role == "assistant":
            answer = next(found)
            old = None if answer is None else answer.said
        else:
            old = before[place] if place < len(before) else None
        kept.append(message if old is None or message != old else old)
    return tuple(kept)


def _edited(message: Message, graph: PrefixGraph, prompt: bytes) -> RecordedCall | None:
    """Return the call whose answer was changed to `message`: by its place, or by a call's id."""
    ids = {call.call_id for call in message.tool_calls}
    named = (call for call in graph.calls if ids & {made.call_id for made in call.said.tool_calls})
    return next(iter(graph.answers_to(prompt)), None) or next(named, None)


def _turns(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Return the messages as runs: read, written, read, ...; each written run is one message."""
    turns = [
        tuple(run) for _, run in groupby(messages, key=lambda message: message.role == "assistant")
    ]
    if not turns or turns[0][0].role == "assistant":
        raise _refused("the conversation must begin with a message of the system or the user")
    if turns[-1][0].role == "assistant":
        raise _refused(
            "the last message is the assistant's; an answer that is begun for the policy "
            "(prefill) cannot be recorded as sampled"
        )
    if any(len(turn) > 1 for turn in turns[1::2]):
        raise _refused(
            "two messages of the assistant follow each other; join them, as one answer is one "
            "message here"
        )
    return turns


def _refused(why: str) -> Refusal:
    return Refusal(400, f"messages: {why}", param="messages")


def _encoded(read: tuple[Message, ...], dialect: Dialect, *, is_first: bool) -> tuple[int, ...]:
    try:
        return tuple(dialect.prompt_ids(read) if is_first else dialect.result_ids(read))
    except PolicyError as error:
        raise _refused(str(error)) from error


def _written(message: Message, dialect: Dialect) -> tuple[int, ...]:
    """Return the tokens of a message that the policy did not sample, in the policy's dialect."""
    try:
        return dialect.action_ids(action_of(message))
    except PolicyError as error:
        raise _refused(str(error)) from error


def _told(found: Message, sampled: Message) -> str:
    return (
        f"a message of the policy was changed: it wrote {_shortly(sampled)}, and the request has "
        f"{_shortly(found)} in its place. Send answers back as they came, or set "
        'agent.edits = "branch"'
    )


def _shortly(message: Message) -> str:
    said = [f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls]
    return repr(" ".join(said or [message.content])[:80])
