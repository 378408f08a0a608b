"""The trajectories as a table: one row each, with what the suite judges computed as columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pandas as pd

from espalier.knowledge.folding import words
from espalier.records import Message
from espalier.records.trajectory import Trajectory


def trajectory_columns(
    trajectories: Sequence[Trajectory], train_task_ids: Collection[str]
) -> pd.DataFrame:
    """One row a trajectory, in the order given; see `suites.TRAJECTORY_SCHEMA` for the columns.

    Args:
        trajectories: the teacher's.
        train_task_ids: tasks that may be demonstrated.
    """
    episodes = [_after_the_prompt(trajectory.messages) for trajectory in trajectories]
    return pd.DataFrame(
        {
            "row": range(len(trajectories)),
            "task_id": [trajectory.task_id for trajectory in trajectories],
            "is_train_task": [t.task_id in train_task_ids for t in trajectories],
            "turns": [len(_of_role(episode, "assistant")) for episode in episodes],
            "order_faults": [_order_faults(episode) for episode in episodes],
            "call_faults": [_call_faults(t) for t in trajectories],
            "mask_faults": [_mask_faults(t) for t in trajectories],
            "grammar_faults": [_grammar_faults(episode) for episode in episodes],
            "is_solved": [t.reward.get("outcome", 0.0) > 0 for t in trajectories],
            "is_answer_in_evidence": [_is_answer_in_evidence(t) for t in trajectories],
            "action_share": [_action_share(episode) for episode in episodes],
        }
    )


def _after_the_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """Everything after the question; all of it where no user message asks one."""
    roles = [message.role for message in messages]
    return messages[roles.index("user") + 1 :] if "user" in roles else messages


def _of_role(messages: Sequence[Message], role: str) -> list[Message]:
    return [message for message in messages if message.role == role]


def _order_faults(episode: Sequence[Message]) -> int:
    """Messages out of order: after each call its result, and a last message of the assistant."""
    faults, pending = 0, 0
    for message in episode:
        if message.role == "tool":
            faults += pending == 0
            pending = max(0, pending - 1)
        else:
            faults += (message.role != "assistant") + (pending > 0)
            pending = len(message.tool_calls)
    ends_open = not episode or episode[-1].role != "assistant"
    return faults + ends_open


def _call_faults(trajectory: Trajectory) -> int:
    """Differences between the recorded calls and results and those that the messages show."""
    shown = [c for m in _of_role(trajectory.messages, "assistant") for c in m.tool_calls]
    results = [message.content for message in _of_role(trajectory.messages, "tool")]
    recorded = trajectory.tool_results
    return _differences(shown, [result.call for result in recorded]) + _differences(
        results, [result.content for result in recorded]
    )


def _differences(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = zip(left, right, strict=False)
    return abs(len(left) - len(right)) + sum(one != other for one, other in pairs)


def _mask_faults(trajectory: Trajectory) -> int:
    """Tokens whose mask or log-prob says another author than the turns do.

    Text that no policy has encoded yet has no tokens, and so no faults.
    """
    is_action = [0] * len(trajectory.token_ids)
    for turn in trajectory.turns:
        length = turn.action_end - turn.action_start
        is_action[turn.action_start : turn.action_end] = [1] * length
    wrong_mask = sum(
        said != meant for said, meant in zip(trajectory.action_mask, is_action, strict=False)
    )
    unsampled = zip(trajectory.action_mask, trajectory.behavior_logprobs, strict=True)
    wrong_logprob = sum(not mask and logprob != 0.0 for mask, logprob in unsampled)
    return wrong_mask + wrong_logprob + abs(len(is_action) - len(trajectory.action_mask))


def _grammar_faults(episode: Sequence[Message]) -> int:
    """Assistant messages that are not what their place asks for: calls, then one answer."""
    written = _of_role(episode, "assistant")
    empty = sum(not message.tool_calls and not message.content for message in written)
    early_answers = sum(not message.tool_calls for message in written[:-1])
    never_answers = not written or bool(written[-1].tool_calls)
    return empty + early_answers + never_answers


def _is_answer_in_evidence(trajectory: Trajectory) -> bool:
    """Whether the answer's words stand in a row in one of the observations."""
    answer = words(trajectory.answer or "")
    if not answer:
        return False
    needle = f" {' '.join(answer)} "
    observed = _of_role(trajectory.messages, "tool")
    return any(needle in f" {' '.join(words(message.content))} " for message in observed)


def _action_share(episode: Sequence[Message]) -> float:
    """Share of the characters after the prompt that the policy wrote."""
    written = sum(_length(message) for message in _of_role(episode, "assistant"))
    total = sum(_length(message) for message in episode)
    return written / total if total else 0.0


def _length(message: Message) -> int:
    calls = sum(len(call.name) + len(json.dumps(call.arguments)) for call in message.tool_calls)
    return len(message.content) + len(message.thought or "") + calls
