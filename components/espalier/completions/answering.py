"""What every door has in common: the cache, asking again, and the account of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from espalier.completions.answers import AnswerT, Refusal, parsed_answer
from espalier.completions.cache import AnswerCache
from espalier.completions.ledger import Ledger
from espalier.completions.request import Request
from espalier.config import EndpointConfig, VllmBatchConfig
from espalier.records import EngineError

ModelConfig = EndpointConfig | VllmBatchConfig

Send = Callable[[Request[Any], int], Awaitable[bytes]]
"""The body of a chat completion for a request; its number tells repeated asks apart."""

_SETTINGS = {"url", "model", "temperature", "max_tokens", "response_format"}


class Answering:
    """Answers requests from the cache, or by sending them.

    An answer that cannot be read is asked for again, `asks` times in all; the last reply is kept in
    the cache whatever it holds, so that a replay refuses what the first run refused.
    """

    def __init__(self, config: ModelConfig, ledger: Ledger, send: Send) -> None:
        self._config = config
        self._cache = AnswerCache(config.cache) if config.cache else None
        self._ledger = ledger
        self._send = send

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`.

        Raises:
            EngineError: sending raises it, or only the cache may be used and does not hold the
                answer.
        """
        key = request.key(answer_settings(self._config))
        usage = self._ledger.of(request.call)
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
            self._ledger.refused(request.call, answer.reason)
        return answer

    async def _asked(self, request: Request[AnswerT]) -> tuple[bytes, AnswerT | Refusal]:
        body, answer = b"", Refusal("empty")
        for ask in range(self._config.asks):
            body = await self._send(request, ask)
            answer = parsed_answer(body, request.answer)
            if not isinstance(answer, Refusal):
                break
        return body, answer


def answer_settings(config: ModelConfig) -> Mapping[str, object]:
    """What an answer depends on beside its request; a model in this process has no address."""
    return {"url": "", **config.model_dump(include=_SETTINGS)}


def seed_of(request: Request[Any], ask: int, asks: int) -> int:
    """A seed of its own for every draw and ask: models that know seeds answer equal ones alike."""
    return request.sample * asks + ask
