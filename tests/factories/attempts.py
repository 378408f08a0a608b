"""Attempts with several turns and windows, made from a seed."""

import random

from espalier.records import Message, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory, Turn


def made_attempt(seed, task_id="t"):
    """An attempt of up to six turns in up to three windows, with every kind of message."""
    dice = random.Random(seed)
    messages = [Message(role="user", content="ask")]
    if dice.random() < 0.5:
        messages.insert(0, Message(role="system", content="rules"))
    ids, mask, logprobs, turns, windows, results = [], [], [], [], [0], []

    def read(count):
        ids.extend(dice.randrange(1000) for _ in range(count))
        mask.extend([0] * count)
        logprobs.extend([0.0] * count)

    read(dice.randint(1, 5))
    for number in range(dice.randint(1, 6)):
        start, count = len(ids), dice.randint(1, 4)
        ids.extend(dice.randrange(1000) for _ in range(count))
        mask.extend([1] * count)
        logprobs.extend(-dice.random() for _ in range(count))
        calls = tuple(
            ToolCall(name=dice.choice("ab"), arguments={"n": n}, call_id=dice.choice(["", f"i{n}"]))
            for n in range(dice.randint(0, 2))
        )
        thought = dice.choice([None, "hm"])
        said = Message(role="assistant", content=f"m{number}", thought=thought, tool_calls=calls)
        messages.append(said)
        seen = dice.randint(0, 3)
        end = len(ids)
        if dice.random() < 0.3 and len(windows) < 3:
            windows.append(end)
            seen = max(1, seen)  # a window begins with what is read again
        read(seen)
        turns.append(Turn(action_start=start, action_end=end, observation_end=len(ids)))
        if seen:
            told = [Message(role="tool", content="r", call_id=call.call_id) for call in calls]
            messages += told or [Message(role=dice.choice(["user", "tool"]), content="go on")]
        results += [ToolResult(call=call, content="r", succeeded=True) for call in calls]
    lost = dice.random() < 0.2
    return Trajectory(
        task_id=task_id,
        group_id=f"g-{task_id}",
        messages=tuple(messages),
        tool_results=tuple(results),
        reward={} if lost else {"outcome": 1.0, "format": 0.1},
        answer=None if lost else "x",
        finish_reason=FinishReason.TIMEOUT if lost else FinishReason.ANSWERED,
        policy_version=3,
        token_ids=tuple(ids),
        action_mask=tuple(mask),
        behavior_logprobs=tuple(logprobs),
        turns=tuple(turns),
        window_starts=tuple(windows),
    )
