"""The model that a profile names, whichever door it is behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from espalier.completions.endpoint import EndpointModel
from espalier.completions.ledger import Ledger
from espalier.completions.request import Model
from espalier.completions.vllm_batch import VllmModel
from espalier.config import EndpointConfig, VllmBatchConfig


class OpenedModel(NamedTuple):
    """A model that can be asked, how many requests it takes at a time, and what they cost."""

    model: Model
    in_flight: int
    ledger: Ledger


@asynccontextmanager
async def opened_model(config: EndpointConfig | VllmBatchConfig) -> AsyncGenerator[OpenedModel]:
    """A server's model, or one that vLLM runs in this process.

    Raises:
        EngineError: its settings name no model, or a key that cannot be read.
    """
    if isinstance(config, VllmBatchConfig):
        async with VllmModel(config) as model:
            yield OpenedModel(model, config.batch_size, model.ledger)
    else:
        async with EndpointModel(config) as model:
            yield OpenedModel(model, config.concurrency, model.ledger)
