"""The trajectories as a table: one row each, with what the suite judges computed as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from espalier.environments import Answer, Malformed, ParsesActions, call_of
from espalier.knowledge.folding import words
from espalier.rollout.trajectory import Trajectory
from espalier.tasks import Message


def trajectory_columns(
    trajectories: Sequence[Trajectory], train_task_ids: Collection[str], parse: ParsesActions
) -> pd.DataFrame:
    """One row a trajectory, in the order given; see `suites.TRAJECTORY_SCHEMA` for the columns.

    Args:
        trajectories: the teacher's.
        train_task_ids: tasks that may be demonstrated.
        parse: reads an action as the environment does.
    """
    episodes = [_after_the_prompt(trajectory.messages) for trajectory in trajectories]
    return pd.DataFrame(
        {
            "row": range(len(trajectories)),
            "task_id": [trajectory.task_id for trajectory in trajectories],
            "is_train_task": [t.task_id in train_task_ids for t in trajectories],
            "turns": [len(_texts(episode, "assistant")) for episode in episodes],
            "order_faults": [_order_faults(episode) for episode in episodes],
            "call_faults": [_call_faults(t, parse) for t in trajectories],
            "mask_faults": [_mask_faults(t) for t in trajectories],
            "grammar_faults": [_grammar_faults(episode, parse) for episode in episodes],
            "is_solved": [t.reward.get("outcome", 0.0) > 0 for t in trajectories],
            "is_answer_in_evidence": [_is_answer_in_evidence(t) for t in trajectories],
            "action_share": [_action_share(episode) for episode in episodes],
        }
    )


def _after_the_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """Everything after the question; all of it where no user message asks one."""
    roles = [message.role for message in messages]
    return messages[roles.index("user") + 1 :] if "user" in roles else messages


def _texts(messages: Sequence[Message], role: str) -> list[str]:
    return [message.content for message in messages if message.role == role]


def _order_faults(episode: Sequence[Message]) -> int:
    """Messages out of the order assistant, tool, assistant, ..., assistant."""
    expected = ("assistant", "tool")
    misplaced = sum(m.role != expected[place % 2] for place, m in enumerate(episode))
    ends_open = len(episode) % 2 == 0
    return misplaced + ends_open


def _call_faults(trajectory: Trajectory, parse: ParsesActions) -> int:
    """Differences between the recorded tool calls and the calls and observations shown."""
    actions = (parse(text) for text in _texts(trajectory.messages, "assistant"))
    shown_calls = [call for action in actions if (call := call_of(action)) is not None]
    shown_results = _texts(trajectory.messages, "tool")
    return _differences(shown_calls, [call.argument for call in trajectory.tool_calls]) + (
        _differences(shown_results, [call.result for call in trajectory.tool_calls])
    )


def _differences(left: Sequence[str], right: Sequence[str]) -> int:
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


def _grammar_faults(episode: Sequence[Message], parse: ParsesActions) -> int:
    """Assistant messages that are not what their place asks for: calls, then one answer."""
    actions = [parse(text) for text in _texts(episode, "assistant")]
    malformed = sum(isinstance(action, Malformed) for action in actions)
    early_answers = sum(isinstance(action, Answer) for action in actions[:-1])
    never_answers = not actions or call_of(actions[-1]) is not None
    return malformed + early_answers + never_answers


def _is_answer_in_evidence(trajectory: Trajectory) -> bool:
    """Whether the answer's words stand in a row in one of the observations."""
    answer = words(trajectory.answer or "")
    if not answer:
        return False
    needle = f" {' '.join(answer)} "
    observations = _texts(trajectory.messages, "tool")
    return any(needle in f" {' '.join(words(text))} " for text in observations)


def _action_share(episode: Sequence[Message]) -> float:
    """Share of the characters after the prompt that the policy wrote."""
    written = sum(len(text) for text in _texts(episode, "assistant"))
    total = sum(len(message.content) for message in episode)
    return written / total if total else 0.0
