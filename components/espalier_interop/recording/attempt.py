"""One attempt: its calls as they are answered and recorded, its reward, and why it was lost."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from espalier.records import (
    Action,
    EngineError,
    FinalAnswer,
    Malformed,
    Message,
    ToolCall,
    ToolCalls,
)
from espalier.records.trajectory import TURNS_TERM, FinishReason, RewardBreakdown
from espalier.rollout.engines.engine import Completion, Engine, Sampling
from espalier.wire.requests import Refusal
from espalier_interop.recording.call_request import Answer, CallRequest
from espalier_interop.recording.conversation import Conversation, DriftedError, read_conversation
from espalier_interop.recording.graph import PrefixGraph, RecordedCall

if TYPE_CHECKING:
    from espalier.dialects.dialect import Dialect
    from espalier_interop.recording.dialects import RequestDialects

_MAX_TERMS = 32
_MAX_CALL_ID = 64
"""Characters of an id that a policy wrote; bounded, as later requests repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The limits of one call of an attempt."""

    max_tokens: int
    """Most tokens of a prompt and its answer together."""
    max_answer_tokens: int
    max_calls: int
    call_timeout_s: float
    branches_on_edits: bool = False


class Policy(NamedTuple):
    """What answers calls: an engine, and the dialect of its policy."""

    engine: Engine
    dialects: RequestDialects


class _Sampled(NamedTuple):
    version: int
    """Version of the policy that wrote it; the oldest of several."""
    completion: Completion


class _SamplingTime:
    """A block in which the engine samples; it ends with TimeoutError or EngineError on failure.

    It is not a task of its own, which would cost a call more time than all of its recording.
    """

    def __init__(self, seconds: float) -> None:
        self._limit = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._limit.__aexit__(kind, failure, traceback)
        if isinstance(failure, Exception):
            if self._limit.expired():  # the engine failed while it was being stopped
                raise TimeoutError from failure
            raise EngineError(f"the engine broke: {failure}") from failure


class Attempt:
    """An open attempt, made and ended by `recorder.Recorder`."""

    def __init__(
        self, attempt_id: str, policy: Policy, limits: CallLimits, sampling: Sampling | None
    ) -> None:
        """Open an attempt.

        Args:
            attempt_id: part of its URL.
            policy: answers its calls.
            limits: of each call.
            sampling: how every call is sampled, whatever it requests; its seed is the attempt's.
                None samples as each request says.
        """
        self.attempt_id = attempt_id
        self.graph = PrefixGraph()
        self.lost: FinishReason | None = None
        """Why the attempt gets no reward; None unless it is lost."""
        self.lost_because = ""
        self.failure: BaseException | None = None
        """The error that broke the engine during a call; the player of the attempt raises it."""
        self.reward: RewardBreakdown | None = None
        """The reward terms that were posted."""
        self.foreign_messages = 0
        """Number of assistant messages in the prompts that the policy did not write."""
        self._policy = policy
        self._limits = limits
        self._sampling = sampling
        self._begun: Counter[bytes] = Counter()
        """Calls begun per prompt, where the stage sets the sampling: a repeated prompt gets another
        seed."""
        self._answers: dict[str, RecordedCall] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def open_calls(self) -> int:
        """Number of calls being answered."""
        return len(self._tasks)

    @property
    def last_answer(self) -> str | None:
        """Return the text of the newest answer that calls no tool; None without one."""
        said = (call.said.content for call in self.graph.calls[::-1] if not call.said.tool_calls)
        return next(said, None)

    def lose(self, reason: FinishReason, because: str) -> None:
        """Mark the attempt as lost; the first reason stands."""
        if self.lost is None:
            self.lost, self.lost_because = reason, because
        for task in tuple(self._tasks):
            task.cancel()

    def remembered(self, answer_id: str) -> tuple[Message, ...]:
        """Return the conversation up to an answer.

        Raises:
            Refusal: the attempt has no such answer.
        """
        call = self._answers.get(answer_id)
        if call is None:
            raise Refusal(
                404,
                "previous_response_id: no such response in this attempt",
                param="previous_response_id",
            )
        return (*call.asked, call.said)

    async def answer(self, asked: CallRequest) -> Answer:
        """Sample and record the answer to one call.

        Raises:
            Refusal: it cannot be answered; if nothing was sampled yet, the attempt goes on.
            EngineError: the engine broke, and the attempt is lost.
        """
        self._expect_going_on()
        dialect = self._policy.dialects.of(asked.tools)
        conversation = self._conversation(asked, dialect)
        prompt_ids = conversation.prompt_ids
        most = self._most_tokens(asked, len(prompt_ids))
        sampling = self._drawn(asked, conversation.prompt)
        with self._counted_as_call():
            version, completion = await self._sampled(prompt_ids, sampling, most)
        answer_id = uuid.uuid4().hex
        text = dialect.message_text(completion.token_ids)
        action: Action = dialect.parse_text(text) if completion.stopped else Malformed("cut off")
        said = self._said(asked, action, text, answer_id)
        call = RecordedCall(
            prompt_ids=prompt_ids,
            answer_ids=completion.token_ids,
            logprobs=completion.logprobs,
            stopped=completion.stopped,
            is_action=not isinstance(action, Malformed),
            policy_version=version,
            asked=conversation.messages,
            said=said,
        )
        self.graph.add(call, conversation.prompt)
        self._answers[answer_id] = call
        return Answer(
            answer_id=answer_id,
            created=int(time.time()),
            said=said,
            stopped=completion.stopped,
            prompt_ids=prompt_ids,
            token_ids=completion.token_ids,
        )

    def post_reward(self, terms: Mapping[str, float]) -> None:
        """Take the attempt's reward.

        Raises:
            Refusal: it is not finite, has too many terms, or differs from a reward posted before,
                which stands.
        """
        self._expect_going_on()
        if not terms or len(terms) > _MAX_TERMS:
            raise Refusal(400, f"terms: send between 1 and {_MAX_TERMS}", param="terms")
        if "outcome" not in terms or TURNS_TERM in terms:
            raise Refusal(
                400,
                f'terms: one must be "outcome", above 0 where the task was solved, and none '
                f'"{TURNS_TERM}"',
                param="terms",
            )
        wrong = sorted(name for name, value in terms.items() if not math.isfinite(value))
        if wrong:
            raise Refusal(400, f"terms: {', '.join(wrong)} is not finite", param="terms")
        if self.reward is not None and self.reward != dict(terms):
            raise Refusal(
                409,
                f"this attempt already has the reward {_said(self.reward)}, which stands; "
                f"{_said(terms)} is refused. Post one reward for each attempt, with all its terms",
                param="terms",
            )
        self.reward = dict(terms)

    def _expect_going_on(self) -> None:
        if self.lost is not None:
            raise Refusal(409, f"this attempt is lost ({self.lost}): {self.lost_because}")

    def _conversation(self, asked: CallRequest, dialect: Dialect) -> Conversation:
        try:
            conversation = read_conversation(
                asked.messages,
                self.graph,
                dialect,
                branches_on_edits=self._limits.branches_on_edits,
            )
        except DriftedError as drift:
            self.lose(FinishReason.DRIFTED, str(drift))
            raise Refusal(409, f"this attempt is lost: {drift}", param="messages") from drift
        self.foreign_messages += conversation.foreign
        return conversation

    def _most_tokens(self, asked: CallRequest, prompt_tokens: int) -> int:
        calls = len(self.graph) + self.open_calls
        if calls >= self._limits.max_calls:
            raise Refusal(
                429, f"{calls} calls were made in this attempt, which is the most (max_calls)"
            )
        room = self._limits.max_tokens - prompt_tokens
        if room < 1:
            raise Refusal(
                400,
                f"the prompt has {prompt_tokens} tokens, and the policy reads "
                f"{self._limits.max_tokens} with its answer; shorten the conversation",
                param="messages",
                code="context_length_exceeded",
            )
        most = min(room, self._limits.max_answer_tokens)
        return most if asked.max_tokens is None else min(most, asked.max_tokens)

    def _drawn(self, asked: CallRequest, prompt: bytes) -> Sampling:
        """Return how the answer is sampled; its seed depends on the prompt, not on call order."""
        if self._sampling is None:
            seed = random.getrandbits(63) if asked.seed is None else asked.seed
            return Sampling(
                temperature=1.0 if asked.temperature is None else asked.temperature,
                seed=seed % (1 << 63),
                top_p=asked.top_p or 1.0,
                top_k=asked.top_k or 0,
            )
        self._begun[prompt] += 1
        named = b"%d/%d/%s" % (self._sampling.seed, self._begun[prompt], prompt)
        seed = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1
        return replace(self._sampling, seed=seed)

    @contextmanager
    def _counted_as_call(self) -> Generator[None]:
        """Within the block a call is open; if the block is cancelled, the attempt is lost."""
        task = asyncio.current_task()
        assert task is not None, "calls are answered by tasks"
        self._tasks.add(task)
        because = "its answer could not be written"
        is_whole = False
        try:
            yield
            is_whole = True
        except TimeoutError as error:
            because = f"it was not answered within {self._limits.call_timeout_s:g} s"
            raise Refusal(504, because) from error
        except EngineError as error:
            because = str(error)
            self.failure = error.__cause__
            raise
        except asyncio.CancelledError as error:
            because = "its client left before the answer"
            if self.lost is None:
                raise
            self._tasks.discard(task)  # cancelled by `lose`: the client is still connected
            raise Refusal(409, f"this attempt is lost: {self.lost_because}") from error
        finally:
            self._tasks.discard(task)
            if not is_whole:
                self.lose(FinishReason.LOST_CALL, f"a call was lost: {because}")

    async def _sampled(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, most: int
    ) -> _Sampled:
        engine = self._policy.engine
        async with _SamplingTime(self._limits.call_timeout_s):
            session = await engine.open(prompt_ids, sampling)
            version = engine.policy_version
            try:
                completion = await session.sample(max_tokens=most)
                return _Sampled(min(completion.versions, default=version), completion)
            finally:
                session.close()

    def _said(self, asked: CallRequest, action: Action, text: str, answer_id: str) -> Message:
        """Return the answer as it is sent; the raw text if it is no action, or was cut off."""
        match action:
            case ToolCalls() if asked.offers_calls:
                calls = action.calls[:1] if asked.one_call else action.calls
                named = tuple(self._named(call, n, answer_id) for n, call in enumerate(calls))
                return replace(action, calls=_told_apart(named, answer_id)).message()
            case FinalAnswer():
                return action.message()
            case _:
                return Message(role="assistant", content=text)

    def _named(self, call: ToolCall, place: int, answer_id: str) -> ToolCall:
        """Return the call with an id that no other call of the attempt has."""
        if not call.call_id or len(call.call_id) > _MAX_CALL_ID:
            return _with_new_id(call, place, answer_id)
        is_taken = self.graph.has_call_id(call.call_id)
        return _with_new_id(call, place, answer_id) if is_taken else call


def _told_apart(calls: tuple[ToolCall, ...], answer_id: str) -> tuple[ToolCall, ...]:
    """Return the calls of one message, with a new id for each that repeats an earlier call's id."""
    ids = [call.call_id for call in calls]
    return tuple(
        _with_new_id(call, place, answer_id) if call.call_id in ids[:place] else call
        for place, call in enumerate(calls)
    )


def _with_new_id(call: ToolCall, place: int, answer_id: str) -> ToolCall:
    # nine letters and digits, as Mistral's chat templates require
    digest = hashlib.sha256(f"{answer_id}:{place}".encode()).hexdigest()
    return call.model_copy(update={"call_id": digest[:9]})


def _said(terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name[:40]}={value:g}" for name, value in sorted(terms.items())[:5])
