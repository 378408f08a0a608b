"""The endpoint's HTTP face: what it answers, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from espalier.config import ServingConfig
from espalier.records import EngineError
from espalier.serving.admission import Admission
from espalier.serving.answering import Answering, StreamedAnswer
from espalier.serving.answers import AnswerShape
from espalier.serving.bodies import read_body, while_connected
from espalier.serving.engine_thread import EngineThread
from espalier.serving.metrics import Gauges, Metrics
from espalier.serving.planning import Plan, plan
from espalier.serving.refusal import Refusal
from espalier.serving.requests import ChatRequest, CompletionRequest, parse

if TYPE_CHECKING:  # it brings torch, and probes are to be answered before that is there
    from espalier.serving.served_policy import ServedPolicy

_TOLD = (Refusal, EngineError, HTTPException, Exception)
"""What is answered in OpenAI's shape; the last one is raised again after, for the log."""


class Endpoint:
    """Answers requests once it was given a policy; until then, and while it leaves, says so."""

    def __init__(self, config: ServingConfig, new_seed: Callable[[], int]) -> None:
        self._config = config
        self._new_seed = new_seed
        self._admission = Admission(config)
        self._metrics = Metrics()
        self._policy: ServedPolicy | None = None
        self._engine: EngineThread | None = None
        self._waits_for = "no version was chosen yet"
        self._is_leaving = False
        # a thread of its own: templates and tokenizers take their time over a long prompt
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="planner")

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
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
            exception_handlers=dict.fromkeys(_TOLD, self.refuse),
        )

    def wait_for(self, what: str) -> None:
        """Say why there is no policy yet."""
        self._waits_for = what

    def serve(self, policy: ServedPolicy, engine: EngineThread) -> None:
        """Answer from now on."""
        self._policy, self._engine = policy, engine

    def leave(self) -> None:
        """Be ready no more, and answer all the same: others are still being told."""
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
        """Alive; an engine that broke is not mended by waiting."""
        if self._engine is not None and self._engine.failure is not None:
            return PlainTextResponse(f"the engine broke: {self._engine.failure}\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Whether requests should be sent here."""
        if self._is_leaving:
            return PlainTextResponse("leaving\n", 503)
        if self._policy is None:
            return PlainTextResponse(f"{self._waits_for}\n", 503)
        return await self.healthz(request)

    async def metrics(self, _: Request) -> Response:
        """For Prometheus."""
        ready = self._policy is not None and not self._is_leaving
        gauges = Gauges(int(ready), self._admission.taken, self._admission.waiting)
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
        """Go on from texts or token ids."""
        return await self._answer(request, CompletionRequest)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation."""
        return await self._answer(request, ChatRequest)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Say why, as OpenAI's API does."""
        refusal = error if isinstance(error, Refusal) else _as_refusal(error)
        self._metrics.count_request(_route(request), refusal.status)
        headers = {"retry-after": "1"} if refusal.status in (429, 503) else None
        return JSONResponse(refusal.body(), refusal.status, headers)

    async def _answer(
        self, http: Request, kind: type[CompletionRequest] | type[ChatRequest]
    ) -> Response:
        body = await read_body(http, self._config)
        began_s = time.perf_counter()
        policy, asked = self._ready_policy(), parse(body, kind)
        with ExitStack() as places:
            places.enter_context(self._admission.hold(1))  # planning is not to pile up either
            planned = await asyncio.get_running_loop().run_in_executor(
                self._planner, plan, asked, policy, self._config, self._new_seed
            )
            places.enter_context(self._admission.hold(len(planned.orders) - 1))
            answering = self._answering(asked, planned, policy, began_s)
            if asked.stream:
                return StreamedAnswer(answering, places.pop_all(), _route(http))
            whole = await while_connected(http.receive, answering.whole())
        self._metrics.count_request(_route(http), 200)
        return Response(json.dumps(whole, allow_nan=False), media_type="application/json")

    def _answering(
        self,
        asked: CompletionRequest | ChatRequest,
        planned: Plan,
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
        return Refusal(error.status_code, error.detail)
    told = str(error) if isinstance(error, EngineError) else "a fault of the server: see its log"
    return Refusal(500, told)


def _route(request: Request) -> str:
    """The path as it is routed: whatever strangers ask for must not grow the metrics."""
    path = request.url.path
    return path if path in ("/v1/completions", "/v1/chat/completions") else "other"
