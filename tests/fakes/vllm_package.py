"""A package that stands in for vLLM: `LLM.chat` answers as it is told, and nothing is loaded."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace


class VLLMError(Exception):
    """As vllm.exceptions names it."""


class SamplingParams(SimpleNamespace):
    """What a chat is decoded with."""


class StructuredOutputsParams(SimpleNamespace):
    """What an answer is held to."""


class Package:
    """What was asked of it, and what it answers."""

    def __init__(self):
        self.respond = lambda messages, params: '{"city": "Paris", "inhabitants": 2}'
        """Messages and parameters of a chat -> its text, or (text, finish reason)."""
        self.loaded = []
        """(model, further settings) of every LLM."""
        self.batches = []
        """(messages, parameters) of every chat, batch by batch."""
        self.threads = set()
        self.closed = 0
        self.failure = None
        self.delay_s = 0.0

    def llm(self, model, **engine):
        if isinstance(self.failure, TypeError):
            raise self.failure
        self.loaded.append((model, engine))
        core = SimpleNamespace(shutdown=self._shut_down)
        return SimpleNamespace(chat=self._chat, llm_engine=SimpleNamespace(engine_core=core))

    def _shut_down(self):
        self.closed += 1

    def _chat(self, messages, sampling_params, use_tqdm):
        assert not use_tqdm
        assert len(messages) == len(sampling_params)
        self.threads.add(threading.get_ident())
        time.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        self.batches.append(list(zip(messages, sampling_params, strict=True)))
        return [self._output(*asked) for asked in self.batches[-1]]

    def _output(self, messages, params):
        answered = self.respond(messages, params)
        text, reason = answered if isinstance(answered, tuple) else (answered, "stop")
        completion = SimpleNamespace(text=text, finish_reason=reason, token_ids=[0] * 5)
        return SimpleNamespace(outputs=[completion], prompt_token_ids=[0] * 10)


def installed(monkeypatch):
    """The package, importable until the test ends."""
    package = Package()
    vllm = ModuleType("vllm")
    vllm.LLM = package.llm
    vllm.exceptions = ModuleType("vllm.exceptions")
    vllm.exceptions.VLLMError = VLLMError
    vllm.sampling_params = ModuleType("vllm.sampling_params")
    vllm.sampling_params.SamplingParams = SamplingParams
    vllm.sampling_params.StructuredOutputsParams = StructuredOutputsParams
    for module in (vllm, vllm.exceptions, vllm.sampling_params):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return package
