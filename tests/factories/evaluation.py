"""Hand-built held-out tasks, question rows, and a roller that plays a script."""

from collections.abc import Sequence
from types import SimpleNamespace

from espalier.evaluation.questions import QuestionRow
from espalier.records import Message, Task, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from tests.factories.records import make_task, make_trajectory


def a_task(task_id, *, gold="Lyon", hops=1, kind="chain"):
    return make_task(task_id, gold=(gold,), split="heldout", hops=hops, kind=kind)


def a_row(task_id="t", *, hops=1, kind="chain", **fields):
    defaults = {
        "groups": {"kind": kind, "hops": str(hops)},
        "em": True,
        "f1": 1.0,
        "answer": "Lyon",
        "gold": "Lyon",
        "tool_calls": 1,
        "finish_reason": "answered",
        "samples": 0,
        "samples_right": 0,
    }
    return QuestionRow(task_id=task_id, **(defaults | fields))


def a_trajectory(task_id, answer, num_searches=1, *, is_right=False):
    call = ToolCall(name="search", arguments={"query": "q"})
    result = ToolResult(call=call, content="r", succeeded=True)
    return make_trajectory(
        task_id,
        messages=(Message(role="user", content="q"),),
        tool_results=(result,) * num_searches,
        outcome=is_right,
        answer=answer,
        finish_reason=FinishReason.MAX_TURNS if answer is None else FinishReason.ANSWERED,
    )


class ScriptedRoller:
    """Answers task t greedily with greedy[t], and its samples with sampled[t] in turn."""

    action_tokens = 10
    total_tokens = 40
    seconds = 2.0
    replays = 0
    drift = SimpleNamespace(drifted=1, turns=6)

    def __init__(self, greedy, sampled, from_memory=()):
        self._greedy = greedy
        self._sampled = sampled
        self._from_memory = dict(from_memory)

    def closed_book(self, questions):
        return [self._from_memory.get(question.task.task_id) for question in questions]

    def roll_out(
        self,
        tasks: Sequence[Task],
        *,
        samples: int,
        temperature: float,
        seed: int,
        on_lost,
        on_ended,
    ) -> list[Trajectory]:
        if temperature == 0.0:
            assert samples == 1
            found = [_scored(task, self._greedy[task.task_id]) for task in tasks]
        else:
            found = [
                _scored(task, self._sampled[task.task_id][sample])
                for task in tasks
                for sample in range(samples)
            ]
        for place, one in enumerate(found):
            on_ended(place, one)
        return found


def _scored(task, answer):
    is_right = answer in task.verifier.gold
    return a_trajectory(task.task_id, answer, is_right=is_right)
