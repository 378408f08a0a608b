"""One episode in progress: tokens on one side, the environment on the other."""

from __future__ import annotations

from collections import deque

from espalier.config import EpisodeConfig
from espalier.environments import SearchQA
from espalier.policy.rendering import Rendering
from espalier.rollout.trajectory import FinishReason, Trajectory, Turn
from espalier.tasks import Message, Task


class Episode:
    """A row of the engine: forces prompt and observations, collects what the policy samples."""

    def __init__(
        self, task: Task, environment: SearchQA, rendering: Rendering, limits: EpisodeConfig
    ) -> None:
        self.prompt_ids = rendering.prompt_ids(task.prompt)
        self._task = task
        self._environment = environment
        self._rendering = rendering
        self._limits = limits
        self._pending = deque(self.prompt_ids)
        self._token_ids: list[int] = []
        self._action_mask: list[int] = []
        self._logprobs: list[float] = []
        self._action: list[int] = []
        self._messages = list(task.prompt)
        self._turns: list[Turn] = []
        if len(self.prompt_ids) >= limits.max_tokens:
            environment.cut_off(FinishReason.MAX_TOKENS)

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._environment.finish_reason is not None

    def forced_token(self) -> int | None:
        """The next prompt or observation token, or None where the policy chooses."""
        if not self._pending:
            return None
        token_id = self._pending.popleft()
        self._append(token_id, mask=0, logprob=0.0)
        return token_id

    def sampled(self, token_id: int, logprob: float) -> None:
        """Take one token of the policy; a completed action is played at once."""
        self._append(token_id, mask=1, logprob=logprob)
        self._action.append(token_id)
        if self._rendering.ends_action(self._action):
            self._play_action()
        elif (
            len(self._action) >= self._limits.max_turn_tokens
            or len(self._token_ids) >= self._limits.max_tokens
        ):
            self._close_turn(observation_tokens=0)
            self._environment.cut_off(FinishReason.MAX_TOKENS)

    def trajectory(self, *, group_id: str, policy_version: int) -> Trajectory:
        """The record of the finished episode."""
        reason = self._environment.finish_reason
        assert reason is not None, "a trajectory is the record of a finished episode"
        return Trajectory(
            task_id=self._task.task_id,
            group_id=group_id,
            messages=tuple(self._messages),
            tool_calls=tuple(self._environment.tool_calls),
            reward=self._environment.score(),
            answer=self._environment.answer,
            finish_reason=reason,
            policy_version=policy_version,
            token_ids=tuple(self._token_ids),
            action_mask=tuple(self._action_mask),
            behavior_logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
        )

    def _play_action(self) -> None:
        text = self._rendering.text(self._action)
        step = self._environment.step(text)
        if step.observation is None:
            self._close_turn(observation_tokens=0)
            return
        observation_ids = self._rendering.observation_ids(step.observation)
        if len(self._token_ids) + len(observation_ids) >= self._limits.max_tokens:
            self._close_turn(observation_tokens=0)
            self._environment.cut_off(FinishReason.MAX_TOKENS)
            return
        self._close_turn(observation_tokens=len(observation_ids))
        self._messages.append(Message(role="tool", content=step.observation))
        self._pending.extend(observation_ids)

    def _close_turn(self, *, observation_tokens: int) -> None:
        end = len(self._token_ids)
        self._messages.append(
            Message(role="assistant", content=self._rendering.text(self._action).strip())
        )
        self._turns.append(
            Turn(
                action_start=end - len(self._action),
                action_end=end,
                observation_end=end + observation_tokens,
            )
        )
        self._action.clear()

    def _append(self, token_id: int, *, mask: int, logprob: float) -> None:
        self._token_ids.append(token_id)
        self._action_mask.append(mask)
        self._logprobs.append(logprob)
