"""vLLM without a server: requests that wait at the same time become one batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from espalier.completions.answering import Answering, seed_of
from espalier.completions.answers import AnswerT, Refusal, usage_of
from espalier.completions.ledger import Ledger
from espalier.completions.request import Request
from espalier.completions.vllm_engine import Chat, VllmEngine
from espalier.config import EndpointConfig, VllmBatchConfig
from espalier.records import EngineError

_CALM_TURNS = 8
"""Turns of the event loop: an answer takes three to reach who asked and come back as a request."""


@dataclass(slots=True)
class _Waiting:
    chat: Chat
    outcome: bytes | EngineError | None = None
    """Its answer, or why the batch that it was in has none."""


class VllmModel:
    """A `Model` in this process; use it as an async context manager.

    vLLM is loaded for the first request that the cache does not answer: a replay needs neither the
    package nor a device.
    """

    def __init__(self, config: VllmBatchConfig) -> None:
        """Load nothing yet.

        Raises:
            EngineError: no model is named.
        """
        if not config.model:
            raise EngineError("vLLM in this process needs a model directory: set vllm.model")
        self.ledger = Ledger(EndpointConfig())  # tokens are counted, and cost nothing
        self._config = config
        self._answering = Answering(config, self.ledger, self._sent)
        self._waiting: deque[_Waiting] = deque()
        self._turn = asyncio.Lock()
        # one thread for all its life: vLLM's sockets belong to the thread that made them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm")
        self._engine: VllmEngine | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.close)
        self._thread.shutdown()

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`.

        Raises:
            EngineError: vLLM cannot be loaded or answers no more, or only the cache may be used
                and does not hold the answer.
        """
        return await self._answering.answer(request)

    async def _sent(self, request: Request[Any], ask: int) -> bytes:
        seed = seed_of(request, ask, self._config.asks)
        chat = Chat(request.messages(), request.answer.model_json_schema(), seed)
        waiting = _Waiting(chat)
        self._waiting.append(waiting)
        async with self._turn:
            while waiting.outcome is None:
                await self._serve()
        if isinstance(waiting.outcome, EngineError):
            raise waiting.outcome
        self._charge(request.call, waiting.outcome)
        return waiting.outcome

    async def _serve(self) -> None:
        """Answer those who wait longest, as many as a batch holds."""
        await self._gather()
        count = min(self._config.batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        chats = [waiting.chat for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            outcomes = await loop.run_in_executor(self._thread, self._completed, chats)
        except EngineError as error:
            outcomes = [error] * count
        except BaseException:
            self._waiting.extendleft(reversed(batch))  # the next in turn serves them
            raise
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome

    async def _gather(self) -> None:
        """Wait until nobody else joins: those who were just answered are about to ask again."""
        calm = 0
        while calm < _CALM_TURNS and len(self._waiting) < self._config.batch_size:
            before = len(self._waiting)
            await asyncio.sleep(0)
            calm = calm + 1 if len(self._waiting) == before else 0

    def _completed(self, chats: Sequence[Chat]) -> list[bytes]:
        if self._engine is None:
            self._engine = VllmEngine(self._config)
        return self._engine.complete(chats)

    def _charge(self, call: str, body: bytes) -> None:
        self.ledger.of(call).requests += 1
        if counted := usage_of(body):
            self.ledger.settle(call, 0.0, counted.prompt_tokens, counted.completion_tokens)
