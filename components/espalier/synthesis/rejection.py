"""Why an attempt is not kept as a demonstration, each reason apart.

WebShaper keeps attempts that are right and neither hallucinate nor repeat themselves (Tao et al.
2025, arXiv:2507.15061, sec. 4.3). A right answer that no observation showed was guessed: whoever
learns from it learns to make up what it has not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from espalier.knowledge.folding import folded_name
from espalier.records import Task
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from espalier.rewards import exact_match

WRONG = "wrong_answer"
UNANSWERED = "unanswered"
UNKNOWN_TOOL = "hallucinated_tool"
NEVER_READ = "hallucinated_observation"
REPEATED = "repetition"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why there is no demonstration of a task."""

    reason: str


_MAX_SAME_CALLS = 1
"""A call that was made before shows nothing new: the documents do not change."""


def reason_against(trajectory: Trajectory, task: Task) -> str | None:
    """The first reason to reject an attempt at `task`; None for one to learn from."""
    if trajectory.finish_reason is not FinishReason.ANSWERED or not trajectory.answer:
        return UNANSWERED
    if not exact_match(trajectory.answer, task.verifier.gold):
        return WRONG
    if _repeats(trajectory.tool_results):
        return REPEATED
    return None if _was_read(trajectory.answer, trajectory) else NEVER_READ


def _repeats(results: tuple[ToolResult, ...]) -> bool:
    made = [
        (one.call.name, *(folded_name(str(value)) for value in one.call.arguments.values()))
        for one in results
    ]
    return any(made.count(call) > _MAX_SAME_CALLS for call in made)


def _was_read(answer: str, trajectory: Trajectory) -> bool:
    """Whether an observation shows the answer, and every message of a tool is a tool's result."""
    results = [result.content for result in trajectory.tool_results]
    observed = [message.content for message in trajectory.messages if message.role == "tool"]
    if any(text not in results for text in observed):
        return False
    name = f" {folded_name(answer)} "
    return any(name in f" {folded_name(text)} " for text in observed)
