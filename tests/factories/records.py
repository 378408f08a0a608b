"""Tasks and trajectories of which a test says only what matters to it."""

from espalier.records import Message, Task, TaskMetadata, Verifier
from espalier.records.trajectory import FinishReason, Trajectory


def make_task(
    task_id="t",
    question=None,
    *,
    gold=("x",),
    environment="search_qa",
    verifier="exact_match",
    arguments=None,
    split="train",
    pattern="",
    kind="chain",
    hops=1,
    **extra,
):
    """A task whose solution takes `hops` steps; what is not named goes into the family's extra."""
    return Task(
        task_id=task_id,
        prompt=(Message(role="user", content=question or f"what is asked by {task_id}"),),
        environment=environment,
        arguments=arguments or {},
        verifier=Verifier(kind=verifier, gold=gold),
        metadata=TaskMetadata(
            split=split,
            source="test",
            pattern=pattern,
            difficulty=hops,
            extra={"kind": kind, "hops": hops, **extra},
        ),
    )


def make_trajectory(task_id="t", *, outcome=1.0, answer=None, **fields):
    """A trajectory of policy version 0 that ended with an answer."""
    return Trajectory(
        **{
            "task_id": task_id,
            "group_id": task_id,
            "messages": (),
            "tool_results": (),
            "reward": {"outcome": float(outcome)},
            "answer": answer,
            "finish_reason": FinishReason.ANSWERED,
            "policy_version": 0,
            **fields,
        }
    )
