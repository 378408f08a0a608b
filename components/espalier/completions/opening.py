"""Opening the model that a profile names, and sending it many requests at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from espalier.completions.answering import Ledger
from espalier.completions.endpoint import EndpointModel
from espalier.completions.request import AnswerT, Model, ModelRefusal, Request
from espalier.completions.vllm_batch import VllmModel
from espalier.config import EndpointConfig, VllmBatchConfig

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def in_order(
    work: Callable[[ItemT], Coroutine[Any, Any, ResultT]], items: Iterable[ItemT], *, in_flight: int
) -> AsyncGenerator[ResultT]:
    """Yield the results of `work` in order, with at most `in_flight` items running.

    Items are drawn as they are needed, so that a stream of any length takes constant memory. An
    error ends the iteration and cancels the tasks in flight.
    """
    window: deque[asyncio.Task[ResultT]] = deque()
    try:
        for item in items:
            window.append(asyncio.create_task(work(item)))
            if len(window) >= in_flight:
                yield await window.popleft()
        while window:
            yield await window.popleft()
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


class OpenedModel(NamedTuple):
    """A model ready for requests, how many it takes at a time, and its cost ledger."""

    model: Model
    in_flight: int
    ledger: Ledger


@asynccontextmanager
async def opened_model(
    settings: EndpointConfig | VllmBatchConfig | Model,
) -> AsyncGenerator[OpenedModel]:
    """Open a server's model, a vLLM model in this process, or pass on an embedded one.

    Raises:
        EngineError: the settings name no model, or the key cannot be read.
    """
    if isinstance(settings, VllmBatchConfig):
        async with VllmModel(settings) as model:
            yield OpenedModel(model, settings.batch_size, model.ledger)
    elif isinstance(settings, EndpointConfig):
        async with EndpointModel(settings) as model:
            yield OpenedModel(model, settings.concurrency, model.ledger)
    else:  # an embedded model never waits, so more requests at a time would only take memory
        yield OpenedModel(settings, 1, Ledger(EndpointConfig()))


def all_answers(
    settings: EndpointConfig | VllmBatchConfig, requests: Iterable[Request[AnswerT]]
) -> list[AnswerT | ModelRefusal]:
    """Return the answers to all requests, in their order.

    Raises:
        EngineError: the server cannot be used.
    """
    return asyncio.run(_answered(settings, requests))


async def _answered(
    settings: EndpointConfig | VllmBatchConfig, requests: Iterable[Request[AnswerT]]
) -> list[AnswerT | ModelRefusal]:
    async with opened_model(settings) as opened:
        answers = in_order(opened.model.answer, requests, in_flight=opened.in_flight)
        return [answer async for answer in answers]
