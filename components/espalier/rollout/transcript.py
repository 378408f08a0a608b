"""The growing record of an episode: what stands in the context, and who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from espalier.dialects.dialect import TurnPieces
from espalier.environments import Environment
from espalier.records import Action, Message, Task
from espalier.records.trajectory import TURNS_TERM, FinishReason, Trajectory, Turn
from espalier.rollout.engines.engine import Completion


class _Piece(NamedTuple):
    """A part of the context that came as a whole."""

    token_ids: tuple[int, ...]
    is_observation: bool


class Transcript:
    """Collects the tokens of one episode, as read and as sampled; nothing is tokenised here."""

    def __init__(self, task: Task) -> None:
        self.policy_version = 0
        """Of the weights that the current context is sampled from."""
        self.pieces: list[TurnPieces] = []
        """What was read after each message of the first context, for `Dialect.drifted_turns`."""
        self._task = task
        self._messages = list(task.prompt)
        self._token_ids: list[int] = []
        self._action_mask: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[Turn] = []
        self._window_starts: list[int] = [0]
        self._context: list[_Piece] = []

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The tokens of the current context."""
        return tuple(token_id for piece in self._context for token_id in piece.token_ids)

    @property
    def context_length(self) -> int:
        """Tokens of the current context."""
        return sum(len(piece.token_ids) for piece in self._context)

    @property
    def num_windows(self) -> int:
        """How many contexts there were so far."""
        return len(self._window_starts)

    def read_prompt(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """The context begins with what the environment opens with."""
        self._messages = list(messages)
        self._read(_Piece(tuple(token_ids), is_observation=False))

    def act(self, action: Completion, parsed: Action) -> None:
        """The policy wrote a message."""
        start = len(self._token_ids)
        self._context.append(_Piece(action.token_ids, is_observation=False))
        self._token_ids += action.token_ids
        self._action_mask += [1] * len(action.token_ids)
        self._logprobs += action.logprobs
        end = len(self._token_ids)
        self._messages.append(parsed.message())
        self._turns.append(Turn(action_start=start, action_end=end, observation_end=end))

    def pay(self, reward: float) -> None:
        """The environment paid for the last message by itself."""
        self._turns[-1] = replace(self._turns[-1], reward=reward)

    def observe(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """The environment answered, and the policy reads it."""
        turn, start = self._turns[-1], len(self._token_ids)
        self._read(_Piece(tuple(token_ids), is_observation=True))
        self._messages.extend(messages)
        if self.num_windows == 1:
            self.pieces.append(TurnPieces(tuple(messages), tuple(token_ids)))
        if turn.action_end == start:
            self._turns[-1] = replace(turn, observation_end=len(self._token_ids))

    def drop_observations(self, tokens: int) -> int:
        """Take the oldest observations out of the context until `tokens` tokens are gone.

        Returns:
            The number of tokens that are gone: 0 where none had to go, and less than asked for
            where there were not enough.
        """
        kept, dropped = [], 0
        for piece in self._context:
            if piece.is_observation and dropped < tokens:
                dropped += len(piece.token_ids)
            else:
                kept.append(piece)
        self._context = kept
        return dropped

    def keep_prompt_and_last(self) -> None:
        """Take everything out of the context but the prompt and the last message."""
        self._context = [self._context[0], self._context[-1]]

    def begin_window(self) -> None:
        """What is left of the context is read again, at the beginning of a new one."""
        self._window_starts.append(len(self._token_ids))
        pieces, self._context = self._context, []
        for piece in pieces:
            self._read(piece)

    def trajectory(
        self, environment: Environment | None, reason: FinishReason, reward: dict[str, float]
    ) -> Trajectory:
        """The record of the episode as it ended."""
        paid = sum(turn.reward for turn in self._turns)
        if paid and reward:
            reward = {**reward, TURNS_TERM: paid}
        return Trajectory(
            task_id=self._task.task_id,
            group_id=self._task.task_id,
            messages=tuple(self._messages),
            tool_results=() if environment is None else tuple(environment.tool_results),
            reward=reward,
            answer=None if environment is None else environment.answer,
            finish_reason=reason,
            policy_version=self.policy_version,
            token_ids=tuple(self._token_ids),
            action_mask=tuple(self._action_mask),
            behavior_logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
            window_starts=tuple(self._window_starts),
        )

    def _read(self, piece: _Piece) -> None:
        self._context.append(piece)
        self._token_ids += piece.token_ids
        self._action_mask += [0] * len(piece.token_ids)
        self._logprobs += [0.0] * len(piece.token_ids)
