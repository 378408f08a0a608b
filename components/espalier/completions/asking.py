"""Many requests to one server, for code that does nothing else meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from espalier.completions.answers import AnswerT, Refusal
from espalier.completions.endpoint import EndpointModel
from espalier.completions.request import Request
from espalier.completions.windowed import in_order
from espalier.config import EndpointConfig


def all_answers(
    endpoint: EndpointConfig, requests: Iterable[Request[AnswerT]]
) -> list[AnswerT | Refusal]:
    """The answers, in the order of the requests.

    Raises:
        EngineError: the server cannot be used.
    """
    return asyncio.run(_answered(endpoint, requests))


async def _answered(
    endpoint: EndpointConfig, requests: Iterable[Request[AnswerT]]
) -> list[AnswerT | Refusal]:
    async with EndpointModel(endpoint) as model:
        answers = in_order(model.answer, requests, in_flight=endpoint.concurrency)
        return [answer async for answer in answers]
