"""What every episode keeps, whatever its tool: its calls, its answer, and why it ended."""

from __future__ import annotations

from espalier.config import RewardConfig
from espalier.environments.environment import Step
from espalier.rollout.trajectory import FinishReason, ToolCall


class Episode:
    """The part of an `Environment` that does not depend on the tool; single use.

    An environment adds `step`, which ends in `_answered`, `_called` or `_finish`, and `score`.
    """

    def __init__(self, *, max_turns: int, reward: RewardConfig) -> None:
        self._max_turns = max_turns
        self._reward = reward
        self.tool_calls: list[ToolCall] = []
        self.answer: str | None = None
        self.finish_reason: FinishReason | None = None

    def cut_off(self, reason: FinishReason) -> None:
        """See `Environment.cut_off`."""
        self._finish(reason)

    def _answered(self, text: str) -> Step:
        self.answer = text
        return self._finish(FinishReason.ANSWERED)

    def _called(self, call: ToolCall) -> Step:
        self.tool_calls.append(call)
        if len(self.tool_calls) >= self._max_turns:
            return self._finish(FinishReason.MAX_TURNS)
        return Step(call.result, None)

    def _finish(self, reason: FinishReason) -> Step:
        self.finish_reason = reason
        return Step(None, reason)

    def _terms(self, outcome: float) -> dict[str, float]:
        """Reward terms: `outcome`, in [0, 1] or the family's own range, and `format`."""
        well_formed = self.finish_reason is FinishReason.ANSWERED
        return {
            "outcome": self._reward.outcome * outcome,
            "format": self._reward.format * well_formed,
        }
