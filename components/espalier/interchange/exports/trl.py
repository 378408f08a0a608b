"""Rows for TRL's trainers: conversations for any model, or tokens for the policy that wrote them.

Conversations have `prompt` and `completion`, `label` (whether the answer was right, which KTO
reads), and `tools` as one JSON text, which TRL parses: as columns, the schemas of different tools
would be merged into one. What tools answered is part of `completion`: train such rows with
`assistant_only_loss=True`. The tokenised rows have one window each, and a mask that says so itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from espalier.interchange.exports.turns import (
    ExportedTrajectory,
    ExportedTurn,
    attempt_facts,
    names_of_calls,
    task_facts,
)
from espalier.records import JsonObject, Message


def trl_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """The conversation of a trajectory; nothing where the policy never said a word."""
    turns = exported.turns
    if not turns or turns[0].wrote is None:
        return []
    names = names_of_calls(turns)
    prompt = [_message(message, names) for message in turns[0].read]
    completion = [_message(message, names) for message in _messages(turns)][len(prompt) :]
    row: JsonObject = {"prompt": [*prompt], "completion": [*completion]}
    if exported.tools is not None:
        tools = [spec.as_function() for spec in exported.tools]
        row["tools"] = json.dumps(tools, ensure_ascii=False)
    if not exported.trajectory.is_lost:
        row["label"] = exported.trajectory.is_right
    return [row | _facts(exported)]


def trl_token_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """A row for each window, with the mask of what the policy sampled in it.

    `assistant_masks` is 1 on every sampled token, in one row alone, and on nothing else.
    """
    trajectory = exported.trajectory
    rows: list[JsonObject] = []
    for number, window in enumerate(trajectory.windows):
        mask = trajectory.action_mask[window]
        if 1 not in mask:
            continue
        row: JsonObject = {
            "input_ids": [*trajectory.token_ids[window]],
            "assistant_masks": [*mask],
            "window": number,
        }
        rows.append(row | _facts(exported))
    return rows


def _facts(exported: ExportedTrajectory) -> JsonObject:
    facts = task_facts(exported) | attempt_facts(exported)
    # one JSON text, as the terms of two families are not the same columns
    facts["reward_terms"] = json.dumps(facts.get("reward_terms"))
    return facts


def _messages(turns: Sequence[ExportedTurn]) -> Iterator[Message]:
    for turn in turns:
        yield from turn.read
        if turn.wrote is not None:
            yield turn.wrote


def _message(message: Message, names: Mapping[str, str]) -> JsonObject:
    said: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "tool":
        said["name"] = names.get(message.call_id, "")
        said["tool_call_id"] = message.call_id
    if message.thought is not None:
        said["reasoning_content"] = message.thought
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return said
