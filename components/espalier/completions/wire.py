"""Sending one request, again and again where the server is away or busy."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import httpx2
import openai
import tenacity

from espalier.completions.ledger import Usage
from espalier.completions.rate_limit import Sleep
from espalier.config import EndpointConfig
from espalier.records import EngineError

_RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may go away; every 5xx may."""
_FIRST_WAIT_S = 0.5
_MAX_BODY_BYTES = 8 << 20
_REMEDIES = {
    401: "check the key in key_file",
    403: "check the key in key_file, and what it may use",
    404: "check url (with its version, as https://host/v1) and model",
}
_KEPT_MESSAGE = 300

Admission = Callable[[], Awaitable[None]]


class Wire:
    """One connection pool; the key is known here and nowhere else."""

    def __init__(self, config: EndpointConfig, key: str, *, sleep: Sleep) -> None:
        self._config = config
        self._key = key
        self._sleep = sleep
        self._client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=config.url,
            max_retries=0,  # tenacity's below are the only ones
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

    async def send(self, fields: dict[str, Any], usage: Usage, admitted: Admission) -> bytes:
        """The body of a successful response.

        Args:
            fields: of the chat completion.
            usage: counts what is sent.
            admitted: waited for before every attempt, repeats included.

        Raises:
            EngineError: the server refuses for good, or does not answer in `attempts` tries.
        """
        retrying = tenacity.AsyncRetrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(self._config.attempts),
            wait=self._wait_s,
            retry=tenacity.retry_if_exception(_may_go_away),
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
            raise EngineError(self._explained(error)) from None  # a cause may quote the headers
        raise AssertionError("the loop above returns or raises")

    async def _body(self, fields: dict[str, Any]) -> bytes:
        # The client's own limit is for one read: a server that drips a byte a second passes it.
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
        """Doubling pauses with jitter, or what the server asks for; never over the limit."""
        limit = self._config.max_wait_s
        backoff = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=limit)(state)
        error = state.outcome.exception() if state.outcome else None
        return min(limit, max(backoff, _asked_wait_s(error)))

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
        if _may_go_away(error):
            remedy = (
                f"{config.attempts} attempts failed; run the same command again, or raise attempts"
            )
        else:
            remedy = _REMEDIES.get(status or 0, "it refuses the request for good")
        return f"{config.url} ({config.model}): {text}; {remedy}"


class _TooLongError(Exception):
    """A body without an end."""


def api_key(config: EndpointConfig) -> str:
    """The key in the endpoint's key file; empty where it names none.

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


def _may_go_away(error: BaseException) -> bool:
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _RETRIED or error.status_code >= 500
    # a connection that breaks inside a body raises the transport's own error
    return isinstance(error, openai.APIConnectionError | httpx2.TransportError | TimeoutError)


def _asked_wait_s(error: BaseException | None) -> float:
    """Seconds that a Retry-After header asks for, as a number or as a date; else 0."""
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
