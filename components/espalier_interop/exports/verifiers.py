"""Episodes as verifiers 0.4 saves them in `traces.jsonl`: a graph of messages that carry tokens.

A message of the policy is a node whose mask covers its sampled tokens. What it read before is in
the nodes of those messages: the tokens are all on the last of them, since nothing records where one
message ends. The tokens on a path from a root are therefore those that the policy saw, and each
window is one path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from espalier import __version__
from espalier.records import JsonObject, Message, ToolSpec
from espalier.records.trajectory import FinishReason
from espalier_interop.exports.turns import (
    ExportedTrajectory,
    ExportedTurn,
    attempt_facts,
    names_of_calls,
    shortest,
    task_facts,
)

_TRACE_VERSION = 1


def verifiers_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """Return the one episode of a trajectory, with its one trace."""
    trajectory = exported.trajectory
    task = _task(exported)
    errors: list[JsonObject] = []
    if trajectory.is_lost:
        reason = trajectory.finish_reason.value
        errors = [{"type": reason, "message": f"the attempt was lost ({reason}) and not judged"}]
    trace: JsonObject = {
        "version": _TRACE_VERSION,
        "id": exported.export_id,
        "verifiers": {"version": f"espalier {__version__}"},
        "task": task,
        "agent": {"config": {}, "name": "policy", "trainable": True},
        "tools": [_tool(spec) for spec in exported.tools or ()],
        "nodes": [*_nodes(exported)],
        "rewards": {
            name: {"score": value, "weight": 1.0} for name, value in trajectory.reward.items()
        },
        "metrics": {} if trajectory.is_lost else {"is_right": float(trajectory.is_right)},
        "info": {
            "espalier": {
                **attempt_facts(exported),
                "turn_rewards": [turn.reward for turn in exported.turns if turn.wrote],
            }
        },
        "is_completed": True,
        "ok": not trajectory.is_lost,
        "stop_condition": trajectory.finish_reason.value,
        "is_timeout": trajectory.finish_reason is FinishReason.TIMEOUT,
        "errors": [*errors],
        "timing": {"start": 0.0},
    }
    episode: JsonObject = {
        "id": exported.export_id,
        "env": {"id": exported.family},
        "task": task,
        "group": {"id": trajectory.group_id},
        "ok": not trajectory.is_lost,
        "errors": [*errors],
        "traces": [trace],
    }
    return [episode]


def _task(exported: ExportedTrajectory) -> JsonObject:
    task_id = exported.trajectory.task_id
    data: JsonObject = {"id": task_id}
    if exported.task is not None:
        data["prompt"] = [_message(message, {}) for message in exported.task.prompt]
    return {"type": exported.family, "data": data | task_facts(exported), "key": task_id}


def _tool(spec: ToolSpec) -> JsonObject:
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
    }


class _Graph:
    """Nodes of one trace."""

    def __init__(self, tools: Sequence[ToolSpec], names: Mapping[str, str]) -> None:
        self.nodes: list[JsonObject] = []
        self._tools = tools
        self._names = names
        self._parent: int | None = None

    def begin(self) -> None:
        """Start a new path."""
        self._parent = None

    def read(self, messages: Sequence[Message], ids: Sequence[int]) -> list[int]:
        """Add messages that were read; return the token ids if there is no message for them."""
        for place, message in enumerate(messages, start=1):
            on_it = [*ids] if place == len(messages) else []
            self._add(message, on_it, [False] * len(on_it))
        return [] if messages else [*ids]

    def write(self, turn: ExportedTurn, message: Message, scaffold: Sequence[int]) -> None:
        """Add a message that the policy wrote, after the read tokens in `scaffold`."""
        mask = [False] * len(scaffold) + [True] * len(turn.wrote_ids)
        self._add(message, [*scaffold, *turn.wrote_ids], mask)
        self.nodes[-1] |= {"sampled": True, "logprobs": [*shortest(turn.logprobs)]}

    def extend(self, ids: Sequence[int]) -> None:
        """Append read tokens to the last message."""
        last = self.nodes[-1]
        for key, more in (("token_ids", [*ids]), ("mask", [False] * len(ids))):
            before = last[key]
            assert isinstance(before, list), "a node lists its tokens"
            last[key] = [*before, *more]

    def _add(self, message: Message, ids: Sequence[int], mask: Sequence[bool]) -> None:
        node: JsonObject = {
            "message": _message(message, self._names),
            "timestamp": 0.0,
            "token_ids": [*ids],
            "mask": [*mask],
        }
        if self._parent is None:
            node["tools"] = [_tool(spec) for spec in self._tools]
        else:
            node["parent"] = self._parent
        self._parent = len(self.nodes)
        self.nodes.append(node)


def _nodes(exported: ExportedTrajectory) -> list[JsonObject]:
    turns = exported.turns
    graph = _Graph(exported.tools or (), names_of_calls(turns))
    prompt = turns[0].read if turns else ()
    window = -1
    for turn in turns:
        read = turn.read
        if turn.window != window:
            window = turn.window
            graph.begin()
            # a window that continues after an observation still begins with the prompt
            if window and not (read and read[0].role in ("system", "user")):
                read = (*prompt, *read)
        scaffold = graph.read(read, turn.read_ids)
        if turn.wrote is not None:
            graph.write(turn, turn.wrote, scaffold)
        elif scaffold:
            graph.extend(scaffold)
    return graph.nodes


def _message(message: Message, names: Mapping[str, str]) -> JsonObject:
    match message.role:
        case "assistant":
            said: JsonObject = {"role": "assistant", "content": message.content or None}
            if message.thought is not None:
                said["reasoning_content"] = message.thought
            if message.tool_calls:
                said["tool_calls"] = [
                    {
                        "id": call.call_id,
                        "name": call.name,
                        "arguments": json.dumps(call.arguments, ensure_ascii=False),
                    }
                    for call in message.tool_calls
                ]
            return said
        case "tool":
            return {
                "role": "tool",
                "tool_call_id": message.call_id,
                "content": message.content,
                "name": names.get(message.call_id, ""),
            }
        case role:
            return {"role": role, "content": message.content}
