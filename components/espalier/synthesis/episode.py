"""The teacher's notebook: actions and observations of one episode, and the trajectory of them."""

from __future__ import annotations

from espalier.knowledge.search import NO_RESULTS, SearchTool
from espalier.records import FinalAnswer, Message, Task, ToolCalls
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from espalier.synthesis import plans


class TeacherEpisode:
    """One attempt at one task through the real search tool."""

    def __init__(self, task: Task, search: SearchTool) -> None:
        self._task = task
        self._search = search
        self._messages = list(task.prompt)
        self._results: list[ToolResult] = []
        self.detour = ""

    def search(self, thought: str, query: str) -> str:
        """Search, note action and observation, and return the observation."""
        observation = self._search.observation(query)
        action = plans.search(thought, query)
        self._say(action)
        self._messages.append(Message(role="tool", content=observation))
        found = observation != NO_RESULTS
        self._results.append(ToolResult(call=action.calls[0], content=observation, succeeded=found))
        return observation

    def peek(self, query: str) -> str:
        """What a search would show, without making it part of the episode."""
        return self._search.observation(query)

    def answered(self, answer: str, *, outcome: float = 1.0) -> Trajectory:
        """End with `answer`; the caller has verified whether it is right (`outcome` 1 or 0)."""
        self._say(FinalAnswer(answer, plans.ready_to_answer()))
        return Trajectory(
            task_id=self._task.task_id,
            group_id=f"teacher/{self._task.task_id}",
            messages=tuple(self._messages),
            tool_results=tuple(self._results),
            reward={"outcome": outcome},
            answer=answer,
            finish_reason=FinishReason.ANSWERED,
            policy_version=0,
            detour=self.detour,
        )

    def _say(self, action: ToolCalls | FinalAnswer) -> None:
        self._messages.append(action.message())
