"""The one door to the `openai` package: structured answers of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from espalier.artifacts import EngineError
from espalier.completions.answers import AnswerT, Refusal, parsed_answer, usage_of
from espalier.completions.cache import AnswerCache
from espalier.completions.ledger import Ledger, estimated_tokens
from espalier.completions.rate_limit import RateLimit, Sleep
from espalier.completions.request import Request
from espalier.completions.wire import Wire, api_key
from espalier.config import EndpointConfig


class EndpointModel:
    """A `Model` behind an address; use it as an async context manager.

    An answer that cannot be read is asked for again, `asks` times in all; the last reply is kept in
    the cache whatever it holds, so that a replay refuses what the first run refused.
    """

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
        self._cache = AnswerCache(config.cache) if config.cache else None
        self._rate = RateLimit(
            config.requests_per_minute, config.tokens_per_minute, clock=time.monotonic, sleep=sleep
        )
        self._slots = asyncio.Semaphore(config.concurrency)
        self._wire = Wire(config, api_key(config), sleep=sleep)
        self._open = AsyncExitStack()
        self.ledger = Ledger(config)

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
        key = request.key(self._settings())
        usage = self.ledger.of(request.call)
        body = self._cache.get(key) if self._cache else None
        if body is not None:
            usage.from_cache += 1
            answer = parsed_answer(body, request.answer)
        elif self._config.replay_only:
            raise EngineError(
                f"{self._config.cache}: holds no answer of {request.call} {key[:12]}, and "
                "replay_only=true sends nothing. Run once without it"
            )
        else:
            body, answer = await self._asked(request)
            if self._cache:
                self._cache.put(key, body)
        usage.answers += 1
        if isinstance(answer, Refusal):
            self.ledger.refused(request.call, answer.reason)
        return answer

    async def _asked(self, request: Request[AnswerT]) -> tuple[bytes, AnswerT | Refusal]:
        body, answer = b"", Refusal("empty")
        for ask in range(self._config.asks):
            body = await self._sent(request, ask)
            answer = parsed_answer(body, request.answer)
            if not isinstance(answer, Refusal):
                break
        return body, answer

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
        # servers that know seeds answer equal requests alike: every draw and ask has its own
        fields = {**self._settings(), "messages": messages}
        fields["seed"] = request.sample * self._config.asks + ask
        del fields["response_format"], fields["url"]
        match self._config.response_format:
            case "json_schema":
                schema = request.answer.model_json_schema()
                wanted = {"name": request.call, "schema": schema, "strict": True}
                fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
            case "json_object":
                fields["response_format"] = {"type": "json_object"}
            case "text":
                pass
        return fields

    def _settings(self) -> Mapping[str, object]:
        """What an answer depends on beside its request."""
        names = {"url", "model", "temperature", "max_tokens", "response_format"}
        return self._config.model_dump(include=names)
