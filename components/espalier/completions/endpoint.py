"""The one door to the `openai` package: structured answers of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from espalier.completions.answering import Answering, seed_of
from espalier.completions.answers import AnswerT, Refusal, usage_of
from espalier.completions.ledger import Ledger, estimated_tokens
from espalier.completions.rate_limit import RateLimit, Sleep
from espalier.completions.request import Request
from espalier.completions.wire import Wire, api_key
from espalier.config import EndpointConfig
from espalier.records import EngineError


class EndpointModel:
    """A `Model` behind an address; use it as an async context manager."""

    def __init__(self, config: EndpointConfig, *, sleep: Sleep = asyncio.sleep) -> None:
        """Open nothing yet.

        Raises:
            EngineError: no address, no model name, or a key file that cannot be read.
        """
        if not config.url or not config.model:
            raise EngineError(
                "an endpoint needs its address and the name of its model: set url and model"
            )
        self._config = config
        self._rate = RateLimit(
            config.requests_per_minute, config.tokens_per_minute, clock=time.monotonic, sleep=sleep
        )
        self._slots = asyncio.Semaphore(config.concurrency)
        self._wire = Wire(config, api_key(config), sleep=sleep)
        self._open = AsyncExitStack()
        self.ledger = Ledger(config)
        self._answering = Answering(config, self.ledger, self._sent)

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

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`.

        Raises:
            EngineError: the server stays away or refuses the request for good, the cost limit is
                reached, or only the cache may be used and does not hold the answer.
        """
        return await self._answering.answer(request)

    async def _sent(self, request: Request[AnswerT], ask: int) -> bytes:
        messages = request.messages()
        prompt_tokens = sum(estimated_tokens(message["content"]) for message in messages)
        usage = self.ledger.of(request.call)
        async with self._slots:
            reserved = self.ledger.reserve(prompt_tokens)
            used = (0, 0)
            try:
                admitted = partial(self._rate.acquire, prompt_tokens + self._config.max_tokens)
                fields = self._fields(request, messages, ask)
                used = (prompt_tokens, 0)
                body = await self._wire.send(fields, usage, admitted)
                counted = usage_of(body)
                # a server that does not count is charged for the longest answer
                used = (
                    (counted.prompt_tokens, counted.completion_tokens)
                    if counted
                    else (prompt_tokens, self._config.max_tokens)
                )
                return body
            finally:
                self.ledger.settle(request.call, reserved, *used)

    def _fields(
        self, request: Request[AnswerT], messages: list[dict[str, str]], ask: int
    ) -> dict[str, Any]:
        config = self._config
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
