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
async def opened_model(
    settings: EndpointConfig | VllmBatchConfig | Model,
) -> AsyncGenerator[OpenedModel]:
    """A server's model, one that vLLM runs in this process, or an embedded one as it is.

    Raises:
        EngineError: the settings name no model, or a key that cannot be read.
    """
    if isinstance(settings, VllmBatchConfig):
        async with VllmModel(settings) as model:
            yield OpenedModel(model, settings.batch_size, model.ledger)
    elif isinstance(settings, EndpointConfig):
        async with EndpointModel(settings) as model:
            yield OpenedModel(model, settings.concurrency, model.ledger)
    else:  # it never waits and costs nothing: more at a time would only take memory
        yield OpenedModel(settings, 1, Ledger(EndpointConfig()))
