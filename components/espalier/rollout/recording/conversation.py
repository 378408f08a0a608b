"""From the messages of a request to token ids, without encoding anew what was sampled.

A conversation alternates: what the policy reads, what it wrote, what it reads. What it reads is
encoded as an episode's observations are; a message of the assistant that an answer of this attempt
was is taken as it was sampled. So the prompt of a call that goes on begins with the tokens of the
call before, whatever a chat template would make of the whole.

An agent may leave out the thought, or white space around the text. Anything else that stands where
the policy answered is drift: the agent changed history, and tokens that were sampled under one
context would be trained under another. `edits` says whether that fails the attempt, or begins a
branch whose changed message is read and not trained. A message of the assistant where nothing was
answered (an example, another model's, a message kept by compaction) begins a branch as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from espalier.dialects.dialect import Dialect
from espalier.records import Message, PolicyError, action_of
from espalier.rollout.recording.graph import PrefixGraph, RecordedCall, id_bytes
from espalier.wire.requests import Refusal


class DriftedError(Exception):
    """The agent changed a message of the policy, or its place; the text says which."""


class Conversation(NamedTuple):
    """The prompt of a call."""

    prompt_ids: tuple[int, ...]
    foreign: int
    """Messages of the assistant that no answer of the attempt is."""


def read_conversation(
    messages: Sequence[Message], graph: PrefixGraph, dialect: Dialect, *, branches_on_edits: bool
) -> Conversation:
    """Token ids of a conversation, up to where the policy is to write.

    Args:
        messages: of the request.
        graph: calls of the attempt so far.
        dialect: of the policy, with the request's tools.
        branches_on_edits: whether a changed message is read as it stands.

    Raises:
        Refusal: the conversation does not alternate, or cannot be written in the dialect.
        DriftedError: a message of the policy was changed.
    """
    turns = _turns(messages)
    spoken = [call for call in graph.calls if call.said.tool_calls or call.said.content]
    ids: tuple[int, ...] = _encoded(turns[0], dialect, is_first=True)
    foreign = 0
    for wrote, read in zip(turns[1::2], turns[2::2], strict=True):
        message = wrote[0]
        here = graph.answers_to(id_bytes(ids))
        found = _same(message, here) or _same(message, spoken[::-1])
        if found is not None:
            ids += found.answer_ids if found.stopped else (*found.answer_ids, *dialect.end_ids)
        elif not branches_on_edits and (edited := here or _named(message, spoken)):
            raise DriftedError(_told(message, edited[0].said))
        else:
            foreign += 1
            ids += _written(message, dialect)
        ids += _encoded(read, dialect, is_first=False)
    return Conversation(ids, foreign)


def _turns(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Runs of messages: read, written, read, ...; each written one is a single message."""
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
    """A message that the policy did not sample, as it would write it."""
    try:
        return dialect.action_ids(action_of(message))
    except PolicyError as error:
        raise _refused(str(error)) from error


def _same(message: Message, calls: Sequence[RecordedCall]) -> RecordedCall | None:
    """The first of the calls whose answer `message` is."""
    wanted = fingerprint(message)
    return next(
        (
            call
            for call in calls
            if fingerprint(call.said) == wanted and _is_thought_kept(message, call.said)
        ),
        None,
    )


def _is_thought_kept(message: Message, said: Message) -> bool:
    return message.thought is None or message.thought.strip() == (said.thought or "").strip()


def _named(message: Message, calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """The calls whose answer has one of the message's call ids."""
    ids = {call.call_id for call in message.tool_calls}
    return [call for call in calls if ids & {made.call_id for made in call.said.tool_calls}]


def fingerprint(message: Message) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    """What of an answer an agent must send back unchanged: its text, and its calls with ids."""
    calls = tuple(
        (call.call_id, call.name, json.dumps(call.arguments, sort_keys=True))
        for call in message.tool_calls
    )
    # beside calls most agents drop what was said; the ids of the calls tell answers apart
    return ("" if calls else message.content.strip(), calls)


def _told(found: Message, sampled: Message) -> str:
    return (
        f"a message of the policy was changed: it wrote {_shortly(sampled)}, and the request has "
        f"{_shortly(found)} in its place. Send answers back as they came, or set "
        'agent.edits = "branch"'
    )


def _shortly(message: Message) -> str:
    said = [f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls]
    return repr(" ".join(said or [message.content])[:80])
