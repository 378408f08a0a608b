"""Answering one request within its deadline: samples all its answers at once, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from espalier.records import EngineError
from espalier.serving.answers import AnswerShape, Json, Written
from espalier.serving.choice import ChoiceReader, Decodes, Piece, SamplingOrder
from espalier.serving.engine_thread import EngineThread
from espalier.serving.metrics import Metrics
from espalier.serving.planning import AnswerPlan
from espalier.wire.connections import drop_connection
from espalier.wire.exchange import while_connected
from espalier.wire.requests import CLIENT_GONE, Refusal

_ERROR_EVENT_S = 1.0
"""Seconds added to `request_timeout_s`, so that the event that reports the timeout is sent."""

STALLED_S = 1.0
"""Seconds without reading after which a client loses its place to one that waits for it."""


DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


class Event(NamedTuple):
    """A piece of one of the answers."""

    number: int
    piece: Piece


@dataclass(slots=True)
class Answering:
    """One request that is being answered."""

    plan: AnswerPlan
    shape: AnswerShape
    tokenizer: Decodes
    engine: EngineThread
    metrics: Metrics
    began_s: float
    """Time at which the request's body had arrived, on the clock of `time.perf_counter`."""
    timeout_s: float

    async def whole(self) -> Json:
        """The response with all answers, once they are complete.

        Raises:
            Refusal: the answers were not complete in time.
            EngineError: the engine broke.
        """
        answers = [Written() for _ in self.plan.orders]
        async with aclosing(self._events()) as events:
            async for number, piece in events:
                answers[number].add(piece)
        return self.shape.whole(answers)

    async def streamed(self) -> AsyncGenerator[bytes]:
        """The response as server-sent events.

        A fault after the first event is sent as an event, without `[DONE]` after it.
        """
        sampled = 0
        for opening in self.shape.opening():
            yield sent_event(opening)
        try:
            async with aclosing(self._events()) as events:
                async for number, piece in events:
                    sampled += len(piece.token_ids)
                    if (content := self.shape.piece(number, piece)) is not None:
                        yield sent_event(content)
        except (Refusal, EngineError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(500, str(error))
            yield sent_event(refusal.body())
            return
        for closing in self.shape.closing(sampled):
            yield sent_event(closing)
        yield DONE

    async def _events(self) -> AsyncGenerator[Event]:
        """The pieces of all answers, counted in the metrics.

        Raises:
            Refusal: the request's deadline passed.
            EngineError: the engine broke.
        """
        sampled = 0
        left_s = self.timeout_s - (time.perf_counter() - self.began_s)
        try:
            async with aclosing(write_all(self.plan.orders, self.engine, self.tokenizer)) as events:
                deadline_s = asyncio.get_running_loop().time() + left_s
                while True:
                    async with asyncio.timeout_at(deadline_s):
                        event = await anext(events, None)
                    if event is None:
                        break
                    if not sampled:
                        self.metrics.observe_first_token(time.perf_counter() - self.began_s)
                    sampled += len(event.piece.token_ids)
                    yield event
            self.metrics.observe_request(time.perf_counter() - self.began_s)
        except TimeoutError as error:
            raise Refusal(
                504,
                f"not answered within {self.timeout_s:g} s ({sampled} tokens were sampled); ask "
                "for fewer tokens, or try again when the server is less busy",
            ) from error
        finally:
            self.metrics.count_tokens(prompt=self.plan.prompt_tokens, sampled=sampled)


class StreamedAnswering(Protocol):
    """One request whose answer is streamed."""

    metrics: Metrics
    timeout_s: float

    def streamed(self) -> AsyncGenerator[bytes]:
        """The response as server-sent events."""
        ...


class StreamedAnswer(Response):
    """A response that streams events until they end or the client disconnects."""

    def __init__(
        self,
        answering: StreamedAnswering,
        places: ExitStack,
        streams: set[StreamedAnswer],
        route: str,
    ) -> None:
        """Prepare the headers; `__call__` sends the response.

        Args:
            answering: source of the events.
            places: closed at the end, which frees the places of the answers.
            streams: set that contains this response while it is being sent.
            route: label of the request in the metrics.
        """
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._answering = answering
        self._places = places
        self._streams = streams
        self._route = route
        self._limit = asyncio.timeout(None)
        self._ended = asyncio.Event()
        self._sending_since_s: float | None = None

    @property
    def stalled_s(self) -> float:
        """Seconds for which the client has not read the event that was sent; 0 where it reads."""
        since_s = self._sending_since_s
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    async def drop(self) -> None:
        """Stop sending, and wait until the places are free."""
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
        await self._ended.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, then free the places.

        A client that stays connected and does not read is disconnected at the deadline, or when
        another request needs its place.
        """
        metrics, status = self._answering.metrics, 200
        self._streams.add(self)
        try:
            with self._places:
                async with self._limit:
                    end_s = self._answering.timeout_s + _ERROR_EVENT_S
                    self._limit.reschedule(asyncio.get_running_loop().time() + end_s)
                    await while_connected(receive, self._send_all(send))
        except Refusal as refusal:  # the client disconnected: nobody would receive an error
            status = refusal.status
        except TimeoutError:
            status = CLIENT_GONE
            drop_connection(scope)
        finally:
            self._streams.discard(self)
            self._ended.set()
        metrics.count_request(self._route, status)

    async def _send_all(self, send: Send) -> None:
        async def timed(message: Message) -> None:
            """Send a message, and record since when it waits for the client to read."""
            self._sending_since_s = asyncio.get_running_loop().time()
            await send(message)
            self._sending_since_s = None

        await timed({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._answering.streamed()) as events:
            async for event in events:
                await timed({"type": "http.response.body", "body": event, "more_body": True})
        await timed({"type": "http.response.body", "body": b"", "more_body": False})


def sent_event(content: Json) -> bytes:
    """An event of a stream, as it is sent."""
    return b"data: " + json.dumps(content, allow_nan=False).encode() + b"\n\n"


async def write_all(
    orders: Sequence[SamplingOrder], engine: EngineThread, tokenizer: Decodes
) -> AsyncGenerator[Event]:
    """The pieces of all answers, interleaved; the last piece of each has a finish reason.

    Leaving the iteration early stops the sampling.

    Raises:
        EngineError: the engine broke.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    writers = [
        asyncio.create_task(_write(number, order, engine, tokenizer, events))
        for number, order in enumerate(orders)
    ]
    try:
        for _ in writers:
            while (event := await events.get()) is not None:
                yield event
        await asyncio.gather(*writers)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def _write(
    number: int,
    order: SamplingOrder,
    engine: EngineThread,
    tokenizer: Decodes,
    events: asyncio.Queue[Event | None],
) -> None:
    """Put the pieces of one answer into `events`, then None, also after an error."""
    reader = ChoiceReader(order, tokenizer)
    try:
        async with aclosing(engine.write(order)) as written:
            async for tokens in written:
                piece = reader.read(tokens)
                events.put_nowait(Event(number, piece))
                if piece.finish_reason is not None:
                    return
    finally:
        events.put_nowait(None)
