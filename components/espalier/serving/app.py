"""The HTTP routes of the endpoint: completions and chat, models, health and metrics.

Before any route: whether there is a place, and whether the request has a key.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from espalier.config import ServingConfig
from espalier.records import EngineError
from espalier.serving.answering import (
    STALLED_S,
    Answering,
    StreamedAnswer,
)
from espalier.serving.answers import AnswerShape
from espalier.serving.engine_thread import EngineThread
from espalier.serving.metrics import Gauges, Metrics
from espalier.serving.planning import AnswerPlan, plan
from espalier.wire.connections import Places, is_crowded
from espalier.wire.exchange import read_body, while_connected
from espalier.wire.keys import ApiKeys, expect_key
from espalier.wire.requests import ChatRequest, CompletionRequest, Refusal, parse

if TYPE_CHECKING:  # they bring torch, and probes are to be answered before that is there
    from espalier.serving.served_policy import ServedPolicy


_PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that a kubelet asks: answered without a key, and when all places are taken."""
_FIGURES = frozenset({"/health", "/metrics"})
"""Paths that are answered when all places are taken, and without a key unless configured."""
_DROPPING_S = 0.2
"""For dropping the first of several clients that stall."""
_ANSWERED = (Refusal, EngineError, HTTPException, Exception)
"""Errors that are answered in OpenAI's shape; Starlette raises the last one again, for the log."""


class Admission:
    """Counts the answers that are sampled or wait, and refuses what is beyond the bound."""

    def __init__(self, config: ServingConfig) -> None:
        self._places = config.rows + config.max_waiting
        self._rows = config.rows
        self.streams: set[StreamedAnswer] = set()
        """Streamed answers that are being sent."""
        self.taken = 0

    @property
    def waiting(self) -> int:
        """Answers that have no row yet."""
        return max(0, self.taken - self._rows)

    @contextmanager
    def hold(self, answers: int) -> Iterator[None]:
        """Take places for the answers of a request while the block runs.

        Raises:
            Refusal: fewer places are free.
        """
        if self.taken + answers > self._places:
            raise Refusal(
                429,
                f"{self.taken} answers are being written or wait, of at most {self._places}; "
                "try again in a moment",
                code="rate_limit_exceeded",
            )
        self.taken += answers
        try:
            yield
        finally:
            self.taken -= answers

    async def make_room(self, answers: int) -> None:
        """Drop clients that do not read their streamed answers, where places are needed.

        The one that has not read for longest goes first, once that is `STALLED_S`; it is waited
        for, where one has begun to stall. Those that read stay.
        """
        end_s = time.monotonic() + STALLED_S + _DROPPING_S
        while self.taken + answers > self._places and time.monotonic() < end_s:
            stalled = max(self.streams, key=lambda one: one.stalled_s, default=None)
            if stalled is None or stalled.stalled_s == 0.0:
                return
            if (left_s := STALLED_S - stalled.stalled_s) > 0:
                await asyncio.sleep(left_s)
            else:
                await stalled.drop()


class Endpoint:
    """Answers requests once it has a policy; before, and while it drains, probes fail."""

    def __init__(
        self, config: ServingConfig, new_seed: Callable[[], int], keys: ApiKeys | None = None
    ) -> None:
        """Answer requests with one of `keys`; None lets everybody in."""
        self._config = config
        self._new_seed = new_seed
        self._keys = keys
        self._admission = Admission(config)
        self._metrics = Metrics()
        self.places = Places(config, self._metrics)
        self._policy: ServedPolicy | None = None
        self._engine: EngineThread | None = None
        self._waits_for = "no version was chosen yet"
        self._is_leaving = False
        # a thread of its own: templates and tokenizers take their time over a long prompt
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="planner")

    def app(self) -> ASGIApp:
        """The application."""
        routed = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.model),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ],
            exception_handlers=dict.fromkeys(_ANSWERED, self.refuse),
        )
        routed.router.redirect_slashes = False  # it would answer with a redirection and no body

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope)
            try:
                self._expect_entry(request)
            except Refusal as refusal:
                await (await self.refuse(request, refusal))(scope, receive, send)
            else:
                await routed(scope, receive, send)

        return guarded

    def _expect_entry(self, request: Request) -> None:
        """Check what holds for every request, before its body is read.

        Raises:
            Refusal: all places are taken, or it has no key that is known.
        """
        path: str = request.scope["path"]
        if is_crowded(request.scope) and path not in _PROBES | _FIGURES:
            raise Refusal(
                503,
                f"{self._config.max_connections} requests are being answered, which is the most "
                "(serving.max_connections); try again in a moment",
            )
        is_open = path in _PROBES or (path in _FIGURES and not self._config.guard_health)
        if not is_open:
            expect_key(request, self._keys)

    def wait_for(self, what: str) -> None:
        """Set why there is no policy yet, for probes and refusals."""
        self._waits_for = what

    def serve(self, policy: ServedPolicy, engine: EngineThread) -> None:
        """Answer requests from now on."""
        self._policy, self._engine = policy, engine

    def leave(self) -> None:
        """Fail /readyz, and go on answering: nodes still send requests for a while."""
        self._is_leaving = True

    async def health(self, _: Request) -> Response:
        """For people and load balancers: 200 where a request would be answered now, else 503.

        Its `status` is ok, loading, draining or broken. A kubelet asks /healthz, which stays 200
        while the policy is loaded, whether to start the container again, and /readyz whether to
        send requests.
        """
        if self._engine is not None and self._engine.failure is not None:
            return _status("broken", f"the engine broke: {self._engine.failure}", 503)
        if self._is_leaving:
            return _status("draining", "told to stop: answering what was begun", 503)
        if self._policy is None:
            return _status("loading", self._waits_for, 503)
        return _status("ok", f"serving {self._policy.source.names[0]}", 200)

    async def healthz(self, _: Request) -> Response:
        """Liveness: fails where the engine broke, which waiting does not mend."""
        if self._engine is not None and self._engine.failure is not None:
            return PlainTextResponse(f"the engine broke: {self._engine.failure}\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Readiness: whether requests should be sent here."""
        if self._is_leaving:
            return PlainTextResponse("leaving\n", 503)
        if self._policy is None:
            return PlainTextResponse(f"{self._waits_for}\n", 503)
        return await self.healthz(request)

    async def metrics(self, _: Request) -> Response:
        """Counters for Prometheus."""
        ready = self._policy is not None and not self._is_leaving
        admission, connections = self._admission, self.places.open
        gauges = Gauges(int(ready), admission.taken, admission.waiting, connections)
        return PlainTextResponse(self._metrics.text(gauges))

    async def models(self, _: Request) -> Response:
        """The policy, once under each of its names."""
        policy = self._ready_policy()
        return JSONResponse(
            {"object": "list", "data": [_listed(policy, name) for name in policy.source.names]}
        )

    async def model(self, request: Request) -> Response:
        """The policy under one name."""
        policy, name = self._ready_policy(), request.path_params["name"]
        if name not in policy.source.names:
            raise Refusal(404, f"{name!r} is not served here", code="model_not_found")
        return JSONResponse(_listed(policy, name))

    async def completions(self, request: Request) -> Response:
        """Continue texts or token ids."""
        return await self._answer(request, CompletionRequest)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation."""
        return await self._answer(request, ChatRequest)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Answer with an error in OpenAI's shape."""
        refusal = error if isinstance(error, Refusal) else _as_refusal(error)
        self._metrics.count_request(_route(request), refusal.status)
        return JSONResponse(refusal.body(), refusal.status, refusal.headers)

    async def _answer(
        self, http: Request, kind: type[CompletionRequest] | type[ChatRequest]
    ) -> Response:
        body = await read_body(http, self._config)
        began_s = time.perf_counter()
        policy, asked = self._ready_policy(), parse(body, kind)
        with ExitStack() as places:
            await self._admission.make_room(1)
            places.enter_context(self._admission.hold(1))  # also while it is planned
            planned = await asyncio.get_running_loop().run_in_executor(
                self._planner, plan, asked, policy, self._config, self._new_seed
            )
            await self._admission.make_room(len(planned.orders) - 1)
            places.enter_context(self._admission.hold(len(planned.orders) - 1))
            answering = self._answering(asked, planned, policy, began_s)
            if asked.stream:
                streams = self._admission.streams
                return StreamedAnswer(answering, places.pop_all(), streams, _route(http))
            whole = await while_connected(http.receive, answering.whole())
        self._metrics.count_request(_route(http), 200)
        return Response(json.dumps(whole, allow_nan=False), media_type="application/json")

    def _answering(
        self,
        asked: CompletionRequest | ChatRequest,
        planned: AnswerPlan,
        policy: ServedPolicy,
        began_s: float,
    ) -> Answering:
        assert self._engine is not None, "a policy comes with its engine"
        shape = AnswerShape(
            asked, planned, policy, answer_id=uuid.uuid4().hex, created=int(time.time())
        )
        timeout_s = self._config.request_timeout_s
        return Answering(
            planned, shape, policy.tokenizer, self._engine, self._metrics, began_s, timeout_s
        )

    def _ready_policy(self) -> ServedPolicy:
        if self._policy is None:
            raise Refusal(503, f"not ready: {self._waits_for}")
        return self._policy


def _status(status: str, detail: str, code: int) -> Response:
    headers = {"retry-after": "1"} if code != 200 else None
    return JSONResponse({"status": status, "detail": detail}, code, headers)


def _listed(policy: ServedPolicy, name: str) -> dict[str, object]:
    source = policy.source
    return {
        "id": name,
        "object": "model",
        "created": source.created,
        "owned_by": "espalier",
        "max_model_len": policy.context,
        **source.described,
    }


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, error.detail, headers=error.headers)
    told = str(error) if isinstance(error, EngineError) else "a fault of the server: see its log"
    return Refusal(500, told)


def _route(request: Request) -> str:
    """The path for the metrics; unknown paths are one, so that they cannot grow without bound."""
    path: str = request.scope["path"]  # a Host header can make request.url raise
    return path if path in ("/v1/completions", "/v1/chat/completions") else "other"
