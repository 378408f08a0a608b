"""The tokens that the policy of one episode has read and written, as context windows.

A context that overflows is shortened, as `episode.overflow` says, and continues in a new window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from espalier.config import EpisodeConfig
from espalier.dialects.dialect import Dialect, TurnPieces
from espalier.environments import Environment
from espalier.records import Action, Malformed, Message, Task
from espalier.records.spans import measured, next_turn
from espalier.records.trajectory import (
    TURNS_TERM,
    FinishReason,
    ToolResult,
    Trajectory,
    Turn,
)
from espalier.rollout.engines.engine import Completion, Engine, Sampling, Session


class _Piece(NamedTuple):
    """A contiguous part of the context: the prompt, a message or an observation."""

    token_ids: tuple[int, ...]
    is_observation: bool
    messages: tuple[Message, ...] = ()
    """The messages of an observation; empty for other pieces."""


class EpisodeTranscript:
    """Collects the tokens of one episode as read and as sampled, without tokenising anything."""

    def __init__(self, task: Task) -> None:
        self.policy_version = 0
        """Version of the weights that the engine had when the current window began."""
        self.pieces: list[TurnPieces] = []
        """Pairs for `Dialect.drifted_turns`: each message of the first window, and what was read
        after it."""
        self._task = task
        self._messages = list(task.prompt)
        self._token_ids: list[int] = []
        self._action_mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._turns: list[Turn] = []
        self._window_starts: list[int] = [0]
        self.num_attempts = 1
        """Attempts of the episode so far."""
        self._earlier_results: list[ToolResult] = []
        self._context: list[_Piece] = []

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Return the tokens of the current context."""
        return tuple(token_id for piece in self._context for token_id in piece.token_ids)

    @property
    def context_length(self) -> int:
        """Number of tokens in the current context."""
        return sum(len(piece.token_ids) for piece in self._context)

    @property
    def prompt_length(self) -> int:
        """Number of tokens in the prompt, with which every context begins."""
        return len(self._context[0].token_ids)

    @property
    def num_windows(self) -> int:
        """Number of context windows so far."""
        return len(self._window_starts)

    def read_prompt(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """Begin the context with the environment's prompt."""
        self._messages = list(messages)
        self._read(_Piece(tuple(token_ids), is_observation=False))

    def act(self, action: Completion, parsed: Action) -> None:
        """Append a message that the policy wrote."""
        start = len(self._token_ids)
        self._context.append(_Piece(action.token_ids, is_observation=False))
        self._token_ids += action.token_ids
        self._action_mask += [1] * len(action.token_ids)
        self._logprobs += action.logprobs
        self._versions += action.versions or [self.policy_version] * len(action.token_ids)
        end = len(self._token_ids)
        self._messages.append(parsed.message())
        self._turns.append(Turn(action_start=start, action_end=end, observation_end=end))

    def add_reward(self, reward: float) -> None:
        """Set the reward of the last turn, from `Environment.step`."""
        self._turns[-1] = replace(self._turns[-1], reward=reward)

    def observe(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """Append an observation."""
        turn, start = self._turns[-1], len(self._token_ids)
        self._read(_Piece(tuple(token_ids), is_observation=True, messages=tuple(messages)))
        self._messages.extend(messages)
        if self.num_windows == 1:
            self.pieces.append(TurnPieces(tuple(messages), tuple(token_ids)))
        if turn.action_end == start:
            self._turns[-1] = replace(turn, observation_end=len(self._token_ids))

    def drop_observations(
        self, tokens: int, rest_of: Callable[[tuple[Message, ...]], tuple[int, ...]]
    ) -> int:
        """Shorten the oldest observations in the context until `tokens` tokens are removed.

        Args:
            tokens: number of tokens to remove.
            rest_of: returns the token ids that must stay of an observation.

        Returns:
            The number of tokens removed; below `tokens` if the observations held fewer.
        """
        kept: list[_Piece] = []
        dropped = 0
        for piece in self._context:
            left = piece
            if piece.is_observation and dropped < tokens:
                rest = piece._replace(token_ids=rest_of(piece.messages))
                left = min(piece, rest, key=lambda one: len(one.token_ids))
            dropped += len(piece.token_ids) - len(left.token_ids)
            if left.token_ids:
                kept.append(left)
        self._context = kept
        return dropped

    def end_turn(self, token_ids: Sequence[int]) -> None:
        """End the policy's last message, which was cut off, so that the episode can continue."""
        self._read(_Piece(tuple(token_ids), is_observation=False))

    def begin_attempt(self, results: Sequence[ToolResult]) -> None:
        """Begin another attempt; the rewards of the one before are discarded.

        Args:
            results: tool results of the attempt that failed.
        """
        self.num_attempts += 1
        self._earlier_results += results
        self._turns = [replace(turn, reward=0.0) for turn in self._turns]

    def keep_prompt_and_last(self) -> None:
        """Remove everything from the context except the prompt and the last message."""
        self._context = [self._context[0], self._context[-1]]

    def begin_window(self) -> None:
        """Begin a new window with the rest of the context, which the policy reads again."""
        self._window_starts.append(len(self._token_ids))
        pieces, self._context = self._context, []
        for piece in pieces:
            self._read(piece)

    def trajectory(
        self, environment: Environment | None, reason: FinishReason, reward: dict[str, float]
    ) -> Trajectory:
        """Return the record of the finished episode."""
        results = () if environment is None else environment.tool_results
        sampled = [v for v, on in zip(self._versions, self._action_mask, strict=True) if on]
        oldest = min(sampled, default=self.policy_version)
        turn_rewards = sum(turn.reward for turn in self._turns)
        if turn_rewards and reward:
            reward = {**reward, TURNS_TERM: turn_rewards}
        return Trajectory(
            task_id=self._task.task_id,
            group_id=self._task.task_id,
            messages=tuple(self._messages),
            tool_results=(*self._earlier_results, *results),
            reward=reward,
            answer=None if environment is None else environment.answer,
            finish_reason=reason,
            policy_version=oldest,
            token_versions=tuple(self._versions) if max(sampled, default=oldest) > oldest else (),
            token_ids=tuple(self._token_ids),
            action_mask=tuple(self._action_mask),
            behavior_logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
            window_starts=tuple(self._window_starts),
            attempts=self.num_attempts,
        )

    def _read(self, piece: _Piece) -> None:
        self._context.append(piece)
        self._token_ids += piece.token_ids
        self._action_mask += [0] * len(piece.token_ids)
        self._logprobs += [0.0] * len(piece.token_ids)
        self._versions += [0] * len(piece.token_ids)


SUMMARY_REQUEST = (
    "The context is full and will be cleared. Write down in short what was found and what is "
    "still to be found."
)
"""What the policy reads where `episode.overflow` is "summarise"."""

REFLECTION_REQUEST = "This was wrong. Write in short what went wrong, and what to do differently."
"""What the policy reads after a failed attempt, where `episode.retry` allows another one."""
RETRY_REQUEST = "Try again from the beginning."
"""What the policy reads after its reflection."""

_REFLECTION_MESSAGE = Message(role="user", content=REFLECTION_REQUEST)
_RETRY_MESSAGE = Message(role="user", content=RETRY_REQUEST)
_SUMMARY_MESSAGE = Message(role="tool", content=SUMMARY_REQUEST)
_DROPPED = "(removed)"
"""Text in place of a dropped observation, where the chat template frames each message."""


class _SampledAction(NamedTuple):
    action: Action
    stopped: bool


class PolicyContext:
    """The context of one episode: an engine's session, and the transcript of its tokens."""

    def __init__(
        self,
        transcript: EpisodeTranscript,
        engine: Engine,
        sampling: Sampling,
        dialect: Dialect,
        limits: EpisodeConfig,
    ) -> None:
        self._transcript = transcript
        self._engine = engine
        self._sampling = sampling
        self._dialect = dialect
        self._limits = limits
        self._session: Session | None = None
        self._is_cut_off = False
        """Whether the policy's last message was cut off at its token limit."""

    async def begin(self, messages: tuple[Message, ...]) -> bool:
        """Read the prompt; return False if it does not fit."""
        prompt_ids = self._dialect.prompt_ids(messages)
        if len(prompt_ids) >= self._limits.max_tokens:
            return False
        self._transcript.read_prompt(prompt_ids, messages)
        await self._open()
        return True

    async def act(self) -> Action | None:
        """Sample the policy's next message; return None if it was cut off."""
        message = await self._write()
        return message.action if message.stopped else None

    def repeat(self, action: Completion) -> Action:
        """Use `action`, which another episode sampled, as the policy's next message."""
        assert self._session is not None, "a context begins with a prompt"
        parsed = self._dialect.parse(action.token_ids)
        self._session.observe(action.token_ids)
        next_turn()
        self._transcript.act(action, parsed)
        return parsed

    async def observe(self, messages: tuple[Message, ...]) -> bool:
        """Read an observation, in a new window if necessary; return False if it does not fit."""
        transcript, limits = self._transcript, self._limits
        token_ids = self._dialect.result_ids(messages)
        excess = transcript.context_length + len(token_ids) + self._reserve - limits.max_tokens
        is_new = excess > 0 and await self._shorten(excess)
        if transcript.context_length + len(token_ids) >= limits.max_tokens:
            return False
        if is_new:
            transcript.begin_window()
            transcript.observe(token_ids, messages)
            await self._open()
        else:
            self._read(token_ids, messages)
        return True

    async def reflect(self, max_tokens: int) -> bool:
        """Have the policy write what went wrong; keep prompt and reflection in a new window.

        Args:
            max_tokens: limit of the reflection.

        Returns:
            False if there is no room for it; the episode ends then.
        """
        transcript, limits = self._transcript, self._limits
        if self._session is None:  # not even the prompt fitted
            return False
        ends = self._dialect.end_ids
        request_ids = self._dialect.result_ids((_REFLECTION_MESSAGE,))
        retry_ids = self._dialect.result_ids((_RETRY_MESSAGE,))
        needed = len(ends) + len(request_ids) + max_tokens
        again = transcript.prompt_length + max_tokens + len(ends) + len(retry_ids)
        if transcript.context_length + needed > limits.max_tokens:
            return False
        if again + limits.max_turn_tokens > limits.max_tokens:
            return False
        if self._is_cut_off:
            transcript.end_turn(ends)
            self._session.observe(ends)
        self._read(request_ids, (_REFLECTION_MESSAGE,))
        await self._write(max_tokens)
        transcript.keep_prompt_and_last()
        transcript.begin_window()
        if self._is_cut_off:
            transcript.end_turn(ends)
        transcript.observe(retry_ids, (_RETRY_MESSAGE,))
        await self._open()
        return True

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def _reserve(self) -> int:
        """Return how many tokens to keep free after an observation, for an action and a summary."""
        action = self._limits.max_turn_tokens
        if self._limits.overflow != "summarise":
            return action
        return 2 * action + len(self._dialect.result_ids((_SUMMARY_MESSAGE,)))

    async def _shorten(self, excess: int) -> bool:
        """Shorten the transcript's context; return whether anything was removed."""
        match self._limits.overflow:
            case "stop":
                return False
            case "truncate":
                return self._transcript.drop_observations(excess, self._left_of) > 0
            case "summarise":
                return await self._summarise()

    async def _summarise(self) -> bool:
        request_ids = self._dialect.result_ids((_SUMMARY_MESSAGE,))
        if self._transcript.context_length + len(request_ids) >= self._limits.max_tokens:
            return False
        self._read(request_ids, (_SUMMARY_MESSAGE,))
        summary = await self._write()
        if not (summary.stopped or self._dialect.syntax.inline_results):
            return False  # without an end of turn the chat template could not continue it
        self._transcript.keep_prompt_and_last()
        return True

    def _left_of(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return what stays of a dropped observation: nothing, or the chat template's frame."""
        if self._dialect.syntax.inline_results:
            return ()
        return self._dialect.result_ids(
            tuple(message.model_copy(update={"content": _DROPPED}) for message in messages)
        )

    async def _write(self, max_tokens: int | None = None) -> _SampledAction:
        assert self._session is not None, "a context begins with a prompt"
        room = self._limits.max_tokens - self._transcript.context_length
        most = self._limits.max_turn_tokens if max_tokens is None else max_tokens
        next_turn()
        with measured("sampling"):
            action = await self._session.sample(max_tokens=min(most, room))
        self._is_cut_off = not action.stopped
        parsed = self._dialect.parse(action.token_ids)
        if (
            not action.stopped
        ):  # cut off: not an action even if it parses, as the policy had not ended it
            parsed = Malformed("cut off", self._dialect.text(action.token_ids))
        self._transcript.act(action, parsed)
        return _SampledAction(parsed, action.stopped)

    def _read(self, token_ids: tuple[int, ...], messages: tuple[Message, ...]) -> None:
        assert self._session is not None, "a context begins with a prompt"
        self._transcript.observe(token_ids, messages)
        self._session.observe(token_ids)

    async def _open(self) -> None:
        self.close()
        # another seed per window: the same random numbers would tend to repeat the same text
        seed = self._sampling.seed + self._transcript.num_windows
        sampling = replace(self._sampling, seed=seed)
        with measured("waiting"):
            self._session = await self._engine.open(self._transcript.context_ids, sampling)
        self._transcript.policy_version = self._engine.policy_version
