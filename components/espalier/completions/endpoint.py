"""A model behind one or several OpenAI-compatible servers, within limits: structured answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from espalier.completions.answering import CachedAnswers, Ledger, estimated_tokens, seed_of
from espalier.completions.request import AnswerT, ModelRefusal, ReplyUsage, Request, usage_of
from espalier.completions.servers import ChatServers, RefusedRequestError, Sleep, api_key
from espalier.config import EndpointConfig
from espalier.records import EngineError, EspalierError

_MINUTE_S = 60.0


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
            asked = list(zip(self._buckets, (1, tokens), strict=True))
            while True:
                now = self._clock()
                wait_s = max(bucket.wait_s(amount, now) for bucket, amount in asked)
                if not wait_s:
                    break
                await self._sleep(wait_s)
            for bucket, amount in asked:
                bucket.take(amount)


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


class RefusedTextError(EspalierError):
    """The server refuses what a policy wrote: without it, the same request is answered."""


class MeteredServer:
    """A model queried within its rate and cost limits; an async context manager."""

    def __init__(self, config: EndpointConfig, key: str = "", *, sleep: Sleep) -> None:
        """Prepare the client; the connection opens on entering the context.

        Args:
            config: the endpoint; its key file is used if `key` is empty.
            key: the API key; never written to a message or a file.
            sleep: the function that waits between repeats.

        Raises:
            EngineError: the address or model name is missing, or the key file cannot be read.
        """
        if not config.urls or not config.model:
            raise EngineError(
                "an endpoint needs its address and the name of its model: set url and model"
            )
        self.config = config
        self.ledger = Ledger(config)
        self._rate = RateLimit(
            config.requests_per_minute, config.tokens_per_minute, clock=time.monotonic, sleep=sleep
        )
        self._servers = ChatServers(config, key or api_key(config), sleep=sleep)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._servers)
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
            body = await self._servers.send(fields, self.ledger.of(call), admitted)
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
