"""What the policy of one episode has in view: a session, and after it another if it overflows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from espalier.config import EpisodeConfig
from espalier.dialects.dialect import Dialect
from espalier.records import Action, Malformed, Message
from espalier.rollout.engines.engine import Engine, Sampling, Session
from espalier.rollout.transcript import Transcript

SUMMARY_REQUEST = (
    "The context is full and will be cleared. Write down in short what was found and what is "
    "still to be found."
)
"""What the policy reads where `episode.overflow` is "summarise"."""


_SUMMARY_MESSAGE = Message(role="tool", content=SUMMARY_REQUEST)


class _Written(NamedTuple):
    action: Action
    stopped: bool


class Context:
    """Keeps the session and the transcript in step."""

    def __init__(
        self,
        transcript: Transcript,
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

    async def begin(self, messages: tuple[Message, ...]) -> bool:
        """Read the prompt; whether there is room for it."""
        prompt_ids = self._dialect.prompt_ids(messages)
        if len(prompt_ids) >= self._limits.max_tokens:
            return False
        self._transcript.read_prompt(prompt_ids, messages)
        await self._open()
        return True

    async def act(self) -> Action | None:
        """The policy's next message; None where it did not come to an end."""
        message = await self._write()
        return message.action if message.stopped else None

    async def observe(self, messages: tuple[Message, ...]) -> bool:
        """Read what the environment answered; whether there is room for it."""
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

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def _reserve(self) -> int:
        """Tokens that an observation leaves free: for an action, and for a summary after it."""
        action = self._limits.max_turn_tokens
        if self._limits.overflow != "summarise":
            return action
        return 2 * action + len(self._dialect.result_ids((_SUMMARY_MESSAGE,)))

    async def _shorten(self, excess: int) -> bool:
        """Make room in the transcript's context, for a new window; whether anything was cut."""
        match self._limits.overflow:
            case "stop":
                return False
            case "truncate":
                return self._transcript.drop_observations(excess) > 0
            case "summarise":
                return await self._summarise()

    async def _summarise(self) -> bool:
        request_ids = self._dialect.result_ids((_SUMMARY_MESSAGE,))
        if self._transcript.context_length + len(request_ids) >= self._limits.max_tokens:
            return False
        self._read(request_ids, (_SUMMARY_MESSAGE,))
        await self._write()
        self._transcript.keep_prompt_and_last()
        return True

    async def _write(self) -> _Written:
        assert self._session is not None, "a context begins with a prompt"
        room = self._limits.max_tokens - self._transcript.context_length
        action = await self._session.sample(max_tokens=min(self._limits.max_turn_tokens, room))
        parsed = self._dialect.parse(action.token_ids)
        if not action.stopped:  # cut off in the middle, whatever it would have come to
            parsed = Malformed("cut off", self._dialect.text(action.token_ids))
        self._transcript.act(action, parsed)
        return _Written(parsed, action.stopped)

    def _read(self, token_ids: tuple[int, ...], messages: tuple[Message, ...]) -> None:
        assert self._session is not None, "a context begins with a prompt"
        self._transcript.observe(token_ids, messages)
        self._session.observe(token_ids)

    async def _open(self) -> None:
        self.close()
        # a window that drew the same numbers again would be likely to say the same again
        seed = self._sampling.seed + self._transcript.num_windows
        sampling = replace(self._sampling, seed=seed)
        self._session = await self._engine.open(self._transcript.context_ids, sampling)
        self._transcript.policy_version = self._engine.policy_version
