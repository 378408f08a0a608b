"""The only module that uses `openai`: structured answers of an OpenAI-compatible server.

Task families import this module whether or not a model is ever called, also on machines without the
extra `train`. Therefore `openai` is imported only where a connection is opened.
"""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx2
import tenacity

from espalier.completions.answering import (
    CachedAnswers,
    CallUsage,
    Ledger,
    estimated_tokens,
    seed_of,
)
from espalier.completions.request import AnswerT, ModelRefusal, ReplyUsage, Request, usage_of
from espalier.config import EndpointConfig
from espalier.records import EngineError, EspalierError

_MINUTE_S = 60.0

Sleep = Callable[[float], Awaitable[None]]


class RateLimit:
    """Two token buckets, requests and tokens per minute; a request waits for both."""

    def __init__(
        self,
        requests_per_minute: int,
        tokens_per_minute: int,
        *,
        clock: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Start with full buckets.

        Args:
            requests_per_minute: 0 sets no limit.
            tokens_per_minute: 0 sets no limit; prompt and longest possible answer count.
            clock: a monotonic clock in seconds.
            sleep: the function that waits.
        """
        self._buckets = [
            _Bucket(limit, clock()) for limit in (requests_per_minute, tokens_per_minute)
        ]
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """Wait until a request of `tokens` tokens is allowed; first come, first served."""
        async with self._turn:
            while wait_s := self._wait_s(tokens):
                await self._sleep(wait_s)
            for bucket, amount in zip(self._buckets, (1, tokens), strict=True):
                bucket.take(amount)

    def _wait_s(self, tokens: int) -> float:
        now = self._clock()
        waits = [b.wait_s(a, now) for b, a in zip(self._buckets, (1, tokens), strict=True)]
        return max(waits)


class _Bucket:
    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._filled_at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Return seconds until `amount` is available; above the size, until the bucket is full."""
        if not self._per_minute:
            return 0.0
        per_second = self._per_minute / _MINUTE_S
        filled = self._level + (now - self._filled_at) * per_second
        self._level, self._filled_at = min(float(self._per_minute), filled), now
        missing = min(amount, self._per_minute) - self._level
        # less than a millisecond is a rounding error, and waiting for it might never end
        return missing / per_second if missing > per_second / 1000 else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount


_RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that are retried; every 5xx status is retried too."""
_FIRST_WAIT_S = 0.5
_MAX_BODY_BYTES = 8 << 20
_REMEDIES = {
    401: "check the key in key_file",
    403: "check the key in key_file, and what it may use",
    404: "check url (with its version, as https://host/v1) and model",
}
_KEPT_MESSAGE = 300

_REFUSED_REQUESTS = frozenset({400, 413, 422})
"""Statuses that concern a single request, such as a conversation too long for the model."""

WaitForAdmission = Callable[[], Awaitable[None]]


class EndpointFault(EngineError):
    """The server did not answer one request; other requests may still succeed."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`timeout`, `connection`, `http_503` (any status), or `no_completion`."""


class RefusedRequestError(EndpointFault):
    """The server refuses what one request says, such as a text too long for its model."""


class RefusedTextError(EspalierError):
    """The server refuses what a policy wrote: without it, the same request is answered."""


class Wire:
    """One connection pool; the only object that holds the API key."""

    def __init__(self, config: EndpointConfig, key: str, *, sleep: Sleep) -> None:
        self._config = config
        self._key = key
        self._sleep = sleep
        import openai

        self._client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=config.url,
            max_retries=0,  # `send` retries
            timeout=config.timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def send(
        self, fields: dict[str, Any], usage: CallUsage, admitted: WaitForAdmission
    ) -> bytes:
        """Send a request, with retries, and return the body of the successful response.

        Args:
            fields: the fields of the chat completion.
            usage: the totals to which requests and retries are added.
            admitted: awaited before every try, repeats included.

        Raises:
            EngineError: the server refuses for good, or does not answer in `attempts` tries.
        """
        import openai

        retrying = tenacity.AsyncRetrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(self._config.attempts),
            wait=self._wait_s,
            retry=tenacity.retry_if_exception(_is_transient),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    await admitted()
                    usage.requests += 1
                    usage.retries += attempt.retry_state.attempt_number > 1
                    return await self._body(fields)
        except (openai.APIError, httpx2.HTTPError, TimeoutError, _TooLongError) as error:
            raise self._fault(error) from None  # a cause may quote the headers
        raise AssertionError("the loop above returns or raises")

    async def _body(self, fields: dict[str, Any]) -> bytes:
        # The client's timeout is per read: a server that sends one byte a second never exceeds it.
        async with (
            asyncio.timeout(self._config.timeout_s),
            self._client.chat.completions.with_streaming_response.create(**fields) as response,
        ):
            body = bytearray()
            async for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _MAX_BODY_BYTES:
                    raise _TooLongError(f"an answer of more than {_MAX_BODY_BYTES} bytes")
            return bytes(body)

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Return jittered exponential backoff or Retry-After, the longer; at most `max_wait_s`."""
        limit = self._config.max_wait_s
        backoff = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=limit)(state)
        error = state.outcome.exception() if state.outcome else None
        return min(limit, max(backoff, _requested_wait_s(error)))

    def _fault(self, error: Exception) -> EngineError:
        status = getattr(error, "status_code", None)
        said = self._explained(error)
        if not (_is_transient(error) or status in _REFUSED_REQUESTS):
            return EngineError(said)
        if status in _REFUSED_REQUESTS:
            return RefusedRequestError(said, f"http_{status}")
        if status:
            return EndpointFault(said, f"http_{status}")
        return EndpointFault(said, "timeout" if _is_timeout(error) else "connection")

    def _explained(self, error: Exception) -> str:
        config = self._config
        status = getattr(error, "status_code", None)
        if isinstance(error, TimeoutError):
            text = f"no whole answer in timeout_s={config.timeout_s}"
        else:
            text = f"HTTP {status}: {error}" if status else str(error)
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())[:_KEPT_MESSAGE]
        if _is_transient(error):
            remedy = (
                f"{config.attempts} attempts failed; run the same command again, or raise attempts"
            )
        else:
            remedy = _REMEDIES.get(status or 0, "it refuses the request for good")
        return f"{config.url} ({config.model}): {text}; {remedy}"


class _TooLongError(Exception):
    """A reply that exceeds the size limit."""


def api_key(config: EndpointConfig) -> str:
    """Return the key in the endpoint's key file; empty if it names no file.

    Raises:
        EngineError: the file cannot be read or is empty.
    """
    if config.key_file is None:
        return ""
    try:
        key = config.key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"key_file={config.key_file}: cannot be read as a key ({error})"
        ) from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise EngineError(f"key_file={config.key_file}: does not hold one line with a key")
    return key


def _is_transient(error: BaseException) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in _RETRIED or error.status_code >= 500
    # a connection that breaks inside a body raises the transport's own error
    return isinstance(error, openai.APIConnectionError | httpx2.TransportError | TimeoutError)


def _is_timeout(error: BaseException) -> bool:
    import openai

    return isinstance(error, openai.APITimeoutError | httpx2.TimeoutException | TimeoutError)


def _requested_wait_s(error: BaseException | None) -> float:
    """Return the seconds of the Retry-After header, a number or a date; 0 without one."""
    import openai

    if not isinstance(error, openai.APIStatusError):
        return 0.0
    header = error.response.headers.get("retry-after", "")
    if header.strip().isdecimal() and len(header) < 10:
        return float(header)
    try:
        when = email.utils.parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, when.timestamp() - time.time())


class MeteredServer:
    """A server queried within its rate and cost limits; an async context manager."""

    def __init__(self, config: EndpointConfig, key: str = "", *, sleep: Sleep) -> None:
        """Prepare the client; the connection opens on entering the context.

        Args:
            config: the endpoint; its key file is used if `key` is empty.
            key: the API key; never written to a message or a file.
            sleep: the function that waits between repeats.

        Raises:
            EngineError: the address or model name is missing, or the key file cannot be read.
        """
        if not config.url or not config.model:
            raise EngineError(
                "an endpoint needs its address and the name of its model: set url and model"
            )
        self.config = config
        self.ledger = Ledger(config)
        self._rate = RateLimit(
            config.requests_per_minute, config.tokens_per_minute, clock=time.monotonic, sleep=sleep
        )
        self._wire = Wire(config, key or api_key(config), sleep=sleep)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._wire)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def _body(
        self, call: str, fields: dict[str, Any], prompt_tokens: int
    ) -> tuple[bytes, ReplyUsage]:
        """Return the body of a response, and the tokens charged to the ledger for it.

        Args:
            call: the call name in the ledger.
            fields: the fields of the chat completion.
            prompt_tokens: an upper estimate.

        Raises:
            EndpointFault: this request got no answer.
            EngineError: the server refuses every request, or the cost limit is reached.
        """
        reserved = self.ledger.reserve(prompt_tokens)
        used = ReplyUsage(prompt_tokens=prompt_tokens, completion_tokens=0)
        try:
            admitted = partial(self._rate.acquire, prompt_tokens + self.config.max_tokens)
            body = await self._wire.send(fields, self.ledger.of(call), admitted)
            # without counts from the server, assume the longest answer
            used = usage_of(body) or ReplyUsage(
                prompt_tokens=prompt_tokens, completion_tokens=self.config.max_tokens
            )
            return body, used
        finally:
            self.ledger.settle(call, reserved, used.prompt_tokens, used.completion_tokens)


class EndpointModel(MeteredServer):
    """A `Model` on a server; use it as an async context manager."""

    def __init__(self, config: EndpointConfig, *, sleep: Sleep = asyncio.sleep) -> None:
        """Prepare the client; the connection opens on entering the context."""
        super().__init__(config, sleep=sleep)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._answering = CachedAnswers(config, self.ledger, self._sent)

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Return the answer to a request, or the reason why there is none.

        Raises:
            RefusedTextError: the server refuses what a policy wrote in the request.
            EngineError: the server is unreachable or refuses every request, the cost limit is
                reached, or only the cache may be used and does not hold the answer.
        """
        return await self._answering.answer(request)

    async def reads_without_policy(self, request: Request[AnswerT]) -> bool:
        """Whether a request has a readable answer once what a policy wrote is left out.

        Where it has none with that text, the text is to blame.

        Raises:
            EngineError: as `answer`.
        """
        if request.without_policy is None:
            return False
        asked = replace(request, material=request.without_policy, without_policy=None)
        return not isinstance(await self.answer(asked), ModelRefusal)

    async def _sent(self, request: Request[AnswerT], ask: int) -> bytes:
        try:
            return await self._asked(request, ask)
        except RefusedRequestError as refused:
            if request.without_policy is None:
                raise
            # refused as well, it raises the same error: then the text is not to blame
            await self._asked(replace(request, material=request.without_policy), ask)
            raise RefusedTextError(f"what the policy wrote is refused: {refused}") from refused

    async def _asked(self, request: Request[AnswerT], ask: int) -> bytes:
        messages = request.messages()
        prompt_tokens = sum(estimated_tokens(message["content"]) for message in messages)
        async with self._slots:
            fields = self._fields(request, messages, ask)
            body, _ = await self._body(request.call, fields, prompt_tokens)
            return body

    def _fields(
        self, request: Request[AnswerT], messages: list[dict[str, str]], ask: int
    ) -> dict[str, Any]:
        config = self.config
        fields: dict[str, Any] = {
            "model": config.model,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "messages": messages,
            "seed": seed_of(request, ask, config.asks),
        }
        match config.response_format:
            case "json_schema":
                schema = request.answer.model_json_schema()
                wanted = {"name": request.call, "schema": schema, "strict": True}
                fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
            case "json_object":
                fields["response_format"] = {"type": "json_object"}
            case "text":
                pass
        return fields
