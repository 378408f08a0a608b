"""Rows for TRL's trainers: conversations for any model, or tokens for the policy that wrote them.

A conversation has `prompt` and `completion`, `label` (whether the answer was right, which KTO
reads), and `tools` as one JSON text, which TRL parses: as a column, the schemas of different tools
would be merged into one. Tool results are part of `completion`: train such rows with
`assistant_only_loss=True`. A tokenised row holds one window, and its mask marks the sampled tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from espalier.records import JsonObject, Message
from espalier_interop.exports.turns import (
    ExportedTrajectory,
    ExportedTurn,
    attempt_facts,
    names_of_calls,
    task_facts,
)


def trl_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """Return the conversation of a trajectory; an empty list if the policy wrote no message."""
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
    """Return a row per window, with a mask of the tokens the policy sampled in it.

    `assistant_masks` is 1 on sampled tokens only, and every sampled token is 1 in exactly one row.
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
    # one JSON text, because different families have different reward terms
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
