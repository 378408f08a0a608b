"""Harbor's Agent Trajectory Interchange Format, version 1.7: one document per line.

A step of the agent has the token ids that the policy read and those that it sampled, with
log-probs: no token of `prompt_token_ids` is trained on, and every token of `completion_token_ids`
is.
"""

from __future__ import annotations

from collections.abc import Sequence

from espalier import __version__
from espalier.records import JsonObject, Message
from espalier_interop.exports.turns import (
    ExportedTrajectory,
    ExportedTurn,
    attempt_facts,
    shortest,
    task_facts,
)

ATIF_VERSION = "ATIF-v1.7"


def atif_rows(exported: ExportedTrajectory) -> list[JsonObject]:
    """Return the document of a trajectory; an empty list if it has no message."""
    steps = _Steps()
    for number, turn in enumerate(exported.turns):
        steps.read(turn.read)
        if turn.wrote is not None:
            # the results of a turn's calls are what the next turn reads
            following = exported.turns[number + 1 : number + 2]
            steps.write(turn, turn.wrote, following[0].read if following else ())
    if not steps.steps:
        return []
    agent: JsonObject = {"name": "espalier", "version": __version__}
    agent["model_name"] = f"policy-{exported.trajectory.policy_version}"
    if exported.tools is not None:
        agent["tool_definitions"] = [spec.as_function() for spec in exported.tools]
    sampled = [turn for turn in exported.turns if turn.wrote_ids]
    metrics: JsonObject = {"total_steps": len(steps.steps)}
    if sampled:
        metrics["total_prompt_tokens"] = sum(len(turn.context_ids) for turn in sampled)
        metrics["total_completion_tokens"] = sum(len(turn.wrote_ids) for turn in sampled)
    document: JsonObject = {
        "schema_version": ATIF_VERSION,
        "session_id": exported.trajectory.group_id,
        "trajectory_id": exported.export_id,
        "agent": agent,
        "steps": [*steps.steps],
        "final_metrics": metrics,
        "extra": task_facts(exported) | attempt_facts(exported),
    }
    return [document]


class _Steps:
    def __init__(self) -> None:
        self.steps: list[JsonObject] = []

    def read(self, messages: Sequence[Message]) -> None:
        """Add messages of the prompt and of a user; tool results belong to the step that called."""
        for message in messages:
            match message.role:
                case "tool":
                    continue
                case "assistant":  # an example in the prompt, which no model wrote
                    self._add({"source": "agent", "message": message.content, "llm_call_count": 0})
                case role:
                    self._add({"source": role, "message": message.content})

    def write(self, turn: ExportedTurn, message: Message, observed: Sequence[Message]) -> None:
        step: JsonObject = {
            "source": "agent",
            "message": message.content,
            "llm_call_count": 1,
            "extra": {"window": turn.window, "reward": turn.reward},
        }
        if message.thought is not None:
            step["reasoning_content"] = message.thought
        if message.tool_calls:
            step["tool_calls"] = [
                {
                    "tool_call_id": call.call_id,
                    "function_name": call.name,
                    "arguments": call.arguments,
                }
                for call in message.tool_calls
            ]
        results: list[JsonObject] = [
            {"source_call_id": one.call_id, "content": one.content}
            for one in observed
            if one.role == "tool"
        ]
        if results:
            step["observation"] = {"results": [*results]}
        if turn.wrote_ids:
            step["metrics"] = {
                "prompt_tokens": len(turn.context_ids),
                "completion_tokens": len(turn.wrote_ids),
                "prompt_token_ids": [*turn.context_ids],
                "completion_token_ids": [*turn.wrote_ids],
                "logprobs": [*shortest(turn.logprobs)],
            }
        self._add(step)

    def _add(self, step: JsonObject) -> None:
        self.steps.append({"step_id": len(self.steps) + 1, **step})
