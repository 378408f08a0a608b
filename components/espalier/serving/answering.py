"""A request while it is answered: whole, or as server-sent events, within its time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from espalier.records import EngineError
from espalier.serving.answers import AnswerShape, Json, Written
from espalier.serving.bodies import while_connected
from espalier.serving.engine_thread import EngineThread
from espalier.serving.growing_text import Decodes
from espalier.serving.metrics import Metrics
from espalier.serving.planning import Plan
from espalier.serving.refusal import CLIENT_GONE, Refusal
from espalier.serving.writing import Event, write_all

_LAST_WORDS_S = 1.0
"""Beyond an answer's own time: what tells that it is over has to be sent as well."""


@dataclass(slots=True)
class Answering:
    """What answering one request takes."""

    plan: Plan
    shape: AnswerShape
    tokenizer: Decodes
    engine: EngineThread
    metrics: Metrics
    began_s: float
    """When its body was there, on the clock of `time.perf_counter`."""
    timeout_s: float

    async def whole(self) -> Json:
        """The answer, once it is written.

        Raises:
            Refusal: it was not written in time.
            EngineError: the engine broke.
        """
        answers = [Written() for _ in self.plan.orders]
        async with aclosing(self._events()) as events:
            async for number, piece in events:
                answers[number].add(piece)
        return self.shape.whole(answers)

    async def streamed(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events.

        A fault after the first of them is told as an event of its own, without `[DONE]`.
        """
        sampled = 0
        for opening in self.shape.opening():
            yield _event(opening)
        try:
            async with aclosing(self._events()) as events:
                async for number, piece in events:
                    sampled += len(piece.token_ids)
                    if (told := self.shape.piece(number, piece)) is not None:
                        yield _event(told)
        except (Refusal, EngineError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(500, str(error))
            yield _event(refusal.body())
            return
        for closing in self.shape.closing(sampled):
            yield _event(closing)
        yield b"data: [DONE]\n\n"

    async def _events(self) -> AsyncGenerator[Event]:
        """The pieces of all answers, counted, and no longer than they may take."""
        sampled = 0
        left_s = self.timeout_s - (time.perf_counter() - self.began_s)
        try:
            async with aclosing(write_all(self.plan.orders, self.engine, self.tokenizer)) as events:
                deadline_s = asyncio.get_running_loop().time() + left_s
                while (event := await _before(deadline_s, anext(events, None))) is not None:
                    if not sampled:
                        self.metrics.observe_first_token(time.perf_counter() - self.began_s)
                    sampled += len(event.piece.token_ids)
                    yield event
            self.metrics.observe_request(time.perf_counter() - self.began_s)
        except TimeoutError as error:
            raise Refusal(
                504,
                f"not answered within {self.timeout_s:g} s ({sampled} tokens were written); ask "
                "for fewer tokens, or try again when fewer wait",
            ) from error
        finally:
            self.metrics.count_tokens(prompt=self.plan.prompt_tokens, sampled=sampled)


class StreamedAnswer(Response):
    """Sends the events of an answer; a client that goes away ends it."""

    def __init__(self, answering: Answering, places: ExitStack, route: str) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._answering = answering
        self._places = places
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; the places are given back however it ends.

        A client that stays and does not read is left as well, when its time is over.
        """
        metrics, status = self._answering.metrics, 200
        with self._places:
            try:
                async with asyncio.timeout(self._answering.timeout_s + _LAST_WORDS_S):
                    await while_connected(receive, self._send_all(send))
            except Refusal as refusal:  # the client left: nobody is there to be told
                status = refusal.status
            except TimeoutError:
                status = CLIENT_GONE
            metrics.count_request(self._route, status)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._answering.streamed()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _before(deadline_s: float, event: Awaitable[Event | None]) -> Event | None:
    async with asyncio.timeout_at(deadline_s):
        return await event


def _event(content: Json) -> bytes:
    return b"data: " + json.dumps(content, allow_nan=False).encode() + b"\n\n"
