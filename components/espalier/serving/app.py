"""HTTP routes of the endpoint: completions, chat, models, health and metrics.

Before any route, a request is checked for a free place and for its API key.
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
from espalier.serving.agent import AgentRequest, EpisodeAnswering, EpisodeThread, ServedAgent
from espalier.serving.answering import STALLED_S, Answering, StreamedAnswer
from espalier.serving.answers import AnswerShape
from espalier.serving.engine_thread import EngineThread
from espalier.serving.metrics import Gauges, Metrics
from espalier.serving.planning import plan
from espalier.wire.connections import Places, is_crowded
from espalier.wire.exchange import read_body, while_connected
from espalier.wire.keys import ApiKeys, expect_key
from espalier.wire.requests import ChatRequest, CompletionRequest, Refusal, parse

if TYPE_CHECKING:  # it imports torch, and probes must be answered before that is loaded
    from espalier.serving.served_policy import ServedPolicy


_PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that a kubelet probes: answered without a key, and when all places are taken."""
_FIGURES = frozenset({"/health", "/metrics"})
"""Paths that are answered when all places are taken, and without a key unless
`serving.guard_health` is set."""
_DROPPING_S = 0.2
"""Seconds, beyond `STALLED_S`, that a request waits for a stalled client to be disconnected."""
_ANSWERED = (Refusal, EngineError, HTTPException, Exception)
"""Errors that are answered in OpenAI's format; Starlette raises the last again, to log it."""


class Admission:
    """Counter of the answers that are sampled or wait; refuses requests beyond the limit."""

    def __init__(self, config: ServingConfig) -> None:
        self._places = config.rows + config.max_waiting
        self._rows = config.rows
        self.streams: set[StreamedAnswer] = set()
        """Streamed answers that are being sent."""
        self.taken = 0

    @property
    def waiting(self) -> int:
        """Number of answers that wait for a row of the engine."""
        return max(0, self.taken - self._rows)

    @contextmanager
    def hold(self, answers: int) -> Iterator[None]:
        """Hold places for the answers of a request while the block runs.

        Raises:
            Refusal: too few places are free.
        """
        if self.taken + answers > self._places:
            raise Refusal(
                429,
                f"{self.taken} answers are being sampled or wait, of at most {self._places}; "
                "try again in a moment",
                code="rate_limit_exceeded",
            )
        self.taken += answers
        try:
            yield
        finally:
            self.taken -= answers

    async def make_room(self, answers: int) -> None:
        """Disconnect clients that do not read their streamed answers, where places are needed.

        The client that has not read for longest is first, once it has stalled for `STALLED_S`;
        this waits until then where a client has begun to stall. Clients that read stay.
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
    """The endpoint's state and routes; not ready before it has a policy, nor while it drains."""

    def __init__(
        self, config: ServingConfig, new_seed: Callable[[], int], keys: ApiKeys | None = None
    ) -> None:
        """Accept requests with one of `keys`; None accepts every request."""
        self._config = config
        self._new_seed = new_seed
        self._keys = keys
        self._admission = Admission(config)
        self._metrics = Metrics()
        self.places = Places(config, self._metrics)
        self._policy: ServedPolicy | ServedAgent | None = None
        self._engine: EngineThread | EpisodeThread | None = None
        self._waits_for = "no version is chosen yet"
        self._is_leaving = False
        # a thread of its own: templating and tokenizing a long prompt would block the event loop
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="planner")

    def app(self) -> ASGIApp:
        """The ASGI application."""
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
        routed.router.redirect_slashes = False  # a redirection has no body in OpenAI's format

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
        """Check places and the API key, before the request's body is read.

        Raises:
            Refusal: all places are taken, or the request has no valid key.
        """
        path: str = request.scope["path"]
        if is_crowded(request.scope) and path not in _PROBES | _FIGURES:
            raise Refusal(
                503,
                f"{self._config.max_connections} requests are being answered, which is the limit "
                "(serving.max_connections); try again in a moment",
            )
        is_open = path in _PROBES or (path in _FIGURES and not self._config.guard_health)
        if not is_open:
            expect_key(request, self._keys)

    def wait_for(self, what: str) -> None:
        """Set the reason, shown by probes and refusals, why there is no policy yet."""
        self._waits_for = what

    def serve(self, policy: ServedPolicy, engine: EngineThread) -> None:
        """Become ready: answer requests with `policy`, sampled by `engine`."""
        self._policy, self._engine = policy, engine

    def serve_agent(self, agent: ServedAgent) -> None:
        """Become ready: answer questions with episodes of `agent`."""
        self._policy, self._engine = agent, agent.episodes

    def leave(self) -> None:
        """Fail /readyz, and keep answering: nodes still send requests for a while."""
        self._is_leaving = True

    async def health(self, _: Request) -> Response:
        """Health for people and load balancers: 200 where a request would be answered, else 503.

        `status` is ok, loading, draining or broken. A kubelet restarts the container by /healthz,
        which is 200 while the policy is being loaded, and sends requests by /readyz.
        """
        if self._engine is not None and self._engine.failure is not None:
            return _status("broken", f"the engine broke: {self._engine.failure}", 503)
        if self._is_leaving:
            return _status("draining", "stopping: requests in flight are still answered", 503)
        if self._policy is None:
            return _status("loading", self._waits_for, 503)
        return _status("ok", f"serving {self._policy.source.names[0]}", 200)

    async def healthz(self, _: Request) -> Response:
        """Liveness: 503 where the engine broke, which only a restart mends."""
        if self._engine is not None and self._engine.failure is not None:
            return PlainTextResponse(f"the engine broke: {self._engine.failure}\n", 503)
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Readiness: 503 before a policy is loaded, while draining, or where the engine broke."""
        if self._is_leaving:
            return PlainTextResponse("leaving\n", 503)
        if self._policy is None:
            return PlainTextResponse(f"{self._waits_for}\n", 503)
        return await self.healthz(request)

    async def metrics(self, _: Request) -> Response:
        """Metrics in Prometheus' text format."""
        ready = self._policy is not None and not self._is_leaving
        admission, connections = self._admission, self.places.open
        gauges = Gauges(int(ready), admission.taken, admission.waiting, connections)
        return PlainTextResponse(self._metrics.text(gauges))

    async def models(self, _: Request) -> Response:
        """List the policy under each of its names."""
        policy = self._ready_policy()
        return JSONResponse(
            {"object": "list", "data": [_listed(policy, name) for name in policy.source.names]}
        )

    async def model(self, request: Request) -> Response:
        """Describe the policy under one of its names."""
        policy, name = self._ready_policy(), request.path_params["name"]
        if name not in policy.source.names:
            raise Refusal(404, f"{name!r} is not served here", code="model_not_found")
        return JSONResponse(_listed(policy, name))

    async def completions(self, request: Request) -> Response:
        """Continue texts or token ids."""
        return await self._answer(request, CompletionRequest)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation; of an agent, the answer of an episode."""
        return await self._answer(request, ChatRequest)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Answer with an error in OpenAI's format."""
        if isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, HTTPException):
            refusal = Refusal(error.status_code, error.detail, headers=error.headers)
        elif isinstance(error, EngineError):
            refusal = Refusal(500, str(error))
        else:
            refusal = Refusal(500, "internal error; see the log")
        self._metrics.count_request(_route(request), refusal.status)
        return JSONResponse(refusal.body(), refusal.status, refusal.headers)

    async def _answer(
        self, http: Request, kind: type[CompletionRequest] | type[ChatRequest]
    ) -> Response:
        body = await read_body(http, self._config)
        began_s = time.perf_counter()
        policy = self._ready_policy()
        with ExitStack() as places:
            if isinstance(policy, ServedAgent):
                if kind is not ChatRequest:
                    raise Refusal(404, "an agent is served here: ask /v1/chat/completions")
                parsed = parse(body, AgentRequest)
                await self._hold(1, places)
                answering = self._episode(parsed, policy, began_s)
            else:
                parsed = parse(body, kind)
                await self._hold(1, places)  # planning takes up a place, too
                answering = await self._sampling(parsed, policy, began_s, places)
            if parsed.stream:
                streams = self._admission.streams
                return StreamedAnswer(answering, places.pop_all(), streams, _route(http))
            whole = await while_connected(http.receive, answering.whole())
        self._metrics.count_request(_route(http), 200)
        return Response(json.dumps(whole, allow_nan=False), media_type="application/json")

    async def _hold(self, answers: int, places: ExitStack) -> None:
        """Hold places for answers until `places` is closed."""
        await self._admission.make_room(answers)
        places.enter_context(self._admission.hold(answers))

    def _episode(
        self, parsed: AgentRequest, agent: ServedAgent, began_s: float
    ) -> EpisodeAnswering:
        return EpisodeAnswering(
            parsed,
            agent.task_for(parsed),
            agent,
            self._metrics,
            seed=self._new_seed() if parsed.seed is None else parsed.seed,
            answer_id=uuid.uuid4().hex,
            created=int(time.time()),
            began_s=began_s,
            timeout_s=self._config.request_timeout_s,
        )

    async def _sampling(
        self,
        parsed: CompletionRequest | ChatRequest,
        policy: ServedPolicy,
        began_s: float,
        places: ExitStack,
    ) -> Answering:
        """Plan the answers of a request, and hold places for all of them."""
        assert isinstance(self._engine, EngineThread), "a policy comes with its engine"
        planned = await asyncio.get_running_loop().run_in_executor(
            self._planner, plan, parsed, policy, self._config, self._new_seed
        )
        await self._hold(len(planned.orders) - 1, places)
        shape = AnswerShape(
            parsed, planned, policy, answer_id=uuid.uuid4().hex, created=int(time.time())
        )
        timeout_s = self._config.request_timeout_s
        return Answering(
            planned, shape, policy.tokenizer, self._engine, self._metrics, began_s, timeout_s
        )

    def _ready_policy(self) -> ServedPolicy | ServedAgent:
        if self._policy is None:
            raise Refusal(503, f"not ready: {self._waits_for}")
        return self._policy


def _status(status: str, detail: str, code: int) -> Response:
    headers = {"retry-after": "1"} if code != 200 else None
    return JSONResponse({"status": status, "detail": detail}, code, headers)


def _listed(policy: ServedPolicy | ServedAgent, name: str) -> dict[str, object]:
    source = policy.source
    return {
        "id": name,
        "object": "model",
        "created": source.created,
        "owned_by": "espalier",
        "max_model_len": policy.context,
        **source.described,
    }


def _route(request: Request) -> str:
    """Route label of the metrics; unknown paths share one, so that labels stay few."""
    path: str = request.scope["path"]  # a Host header can make request.url raise
    return path if path in ("/v1/completions", "/v1/chat/completions") else "other"
