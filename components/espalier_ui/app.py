"""The routes of API.md: each reads a run and answers JSON."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import mimetypes
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from espalier import __version__
from espalier.config import ServingConfig
from espalier.records import EspalierError
from espalier.wire.exchange import read_body
from espalier.wire.keys import bearer
from espalier.wire.requests import Refusal, RequestPart, parse
from espalier_ui import attempts, comparison, curves, one_attempt, search
from espalier_ui.attempts import asked_filter, group_place
from espalier_ui.labels import LabelFile, preference_rows, sft_rows
from espalier_ui.lineage import Documents, Tasks, task_history, tasks_of_document
from espalier_ui.parameters import Parameters, attempt_place
from espalier_ui.run_index import ROLES
from espalier_ui.runs import Run, RunCatalog
from espalier_ui.talk import QuestionAsked, Talks, checkpoints
from espalier_ui.token_text import token_texts

STATIC = Path(__file__).parent / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_COOKIE = "espalier_ui"
_LONGEST_LABEL, _LONGEST_NOTE = 100, 10_000
_MOST_SIDES = 4
_COUNT = re.compile(r"[0-9]{1,9}")
Answer = Callable[[Request, Parameters], Any]


class LabelAsked(RequestPart):
    """The body of a label."""

    label: str = Field(min_length=1, max_length=_LONGEST_LABEL)
    note: str = Field("", max_length=_LONGEST_NOTE)


class ViewerApp:
    """Answers the requests of the viewer's page."""

    def __init__(
        self, catalog: RunCatalog, labels: LabelFile, bounds: ServingConfig, token: str | None
    ) -> None:
        """Prepare to serve.

        Args:
            catalog: the runs.
            labels: the file of labels.
            bounds: limits of bodies.
            token: what every request has to give; None lets everybody in.
        """
        self._catalog, self._labels, self._bounds, self._token = catalog, labels, bounds, token
        self._tasks: dict[str, Tasks] = {}
        self.talks = Talks()
        """What is said to a checkpoint."""

    @property
    def has_token(self) -> bool:
        """Whether it asks for a token."""
        return self._token is not None

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        of_run = {
            "": self._run,
            "/live": self._live,
            "/report": self._report,
            "/steps": self._steps,
            "/notices": self._notices,
            "/timeline": self._timeline,
            "/checkpoints": self._checkpoints,
            "/attempts": self._attempts,
            "/histogram": self._histogram,
            "/groups": self._groups,
            "/groups/parting": self._parting,
            "/attempts/{attempt}": self._attempt,
            "/attempts/{attempt}/tokens": self._tokens,
            "/attempts/{attempt}/{kind}/{number}": self._message,
            "/search": self._search,
            "/failures": self._failures,
            "/tasks/{task:path}": self._task,
            "/documents/{document:path}": self._document,
        }
        plain = {
            "/api/about": self._about,
            "/api/runs": self._runs,
            "/api/figures": self._figures,
            "/api/compare": self._compare,
            "/api/labels": self._all_labels,
        }
        routes = [Route(path, self._answered(answer)) for path, answer in plain.items()]
        routes += [
            Route(f"/api/runs/{{run}}{path}", self._answered(answer))
            for path, answer in of_run.items()
        ]
        routes += [
            Route("/api/chat", self._answered(self._said)),
            Route("/api/chat", self._ask, methods=["POST"]),
            Route("/api/chat", self._end_talk, methods=["DELETE"]),
            Route("/api/labels/export", self._exported),
            Route("/api/labels/{run}/{attempt}", self._put_label, methods=["PUT"]),
            Route("/api/labels/{run}/{attempt}", self._delete_label, methods=["DELETE"]),
            Route("/api/{rest:path}", self._unknown),
            Route("/", self._page),
            Route("/static/{name:path}", self._file),
        ]
        handlers = {
            Refusal: _refused,
            EspalierError: _failed,
            RecursionError: _too_deep,
            sqlite3.Error: _not_indexed,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)  # pyright: ignore[reportArgumentType]
        return _Guarded(app, self._token)

    def _answered(self, answer: Answer) -> Callable[[Request], Any]:
        """Return a handler that answers in a thread: files and SQLite block."""

        async def handle(request: Request) -> Response:
            found = await run_in_threadpool(answer, request, Parameters(request.query_params))
            return found if isinstance(found, Response) else _json(found)

        return handle

    def _of(self, request: Request) -> Run:
        return self._catalog.get(request.path_params["run"])

    def _indexed(self, request: Request) -> Run:
        run = self._of(request)
        run.index.follow()
        return run

    def _tasks_of(self, run: Run) -> Tasks:
        return self._tasks.setdefault(run.id, Tasks(run.path))

    # --------------------------------------------------------------------------------- runs

    def _about(self, _request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        return {
            "version": __version__,
            "api": 1,
            "features": ["labels", "search", "chat"],
            "runs": len(self._catalog.all()),
            "labels_file": str(self._labels.path),
        }

    def _runs(self, _request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        page, text = asked.page(), (asked.text("q") or "").casefold()
        found = [run.overview() for run in self._catalog.all()]
        named = ("name", "path", "family", "model")
        chosen = [
            one for one in found if text in " ".join(str(one[name]) for name in named).casefold()
        ]
        part = chosen[page.offset : page.offset + page.limit]
        return {"total": len(chosen), "offset": page.offset, "runs": part}

    def _run(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        run = self._of(request)
        run.index.follow(patience_s=0.3)  # the first picture does not wait for all summaries
        state = run.index.state()
        rows = run.curves.rows()
        restarts = [one for one in run.curves.notices() if one["level"] == "restart"]
        sources = []
        for source in run.index.sources:
            of_steps = rows if source.name == "train" else []
            sources.append(
                {
                    "name": source.name,
                    "attempts": state.attempts.get(source.name, 0),
                    "first_step": of_steps[0]["step"] if of_steps else None,
                    "last_step": of_steps[-1]["step"] if of_steps else None,
                    "complete": source.is_complete,
                    "indexed": state.worded,
                }
            )
        results = run.json("evaluation/results.json") or None
        return run.overview() | {
            "stages": run.stages(),
            "sources": sources,
            "profile": run.json("profile.json"),
            "results": results,
            "restarts": [{"time": one["time"], "step": one["step"]} for one in restarts],
            "labels": len(self._labels.of_run(run.path)),
        }

    def _live(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        run = self._of(request)
        run.index.follow(patience_s=0.2)
        overview, state = run.overview(), run.index.state()
        names = ("state", "stage", "step", "updated")
        found = {name: overview[name] for name in names} | {
            "attempts": state.attempts,
            "notices": len(run.curves.notices()),
            "indexed": state.worded,
        }
        tag = f'"{hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return _json(found, {"etag": tag})

    def _report(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        return {"sections": self._of(request).report.sections()}

    # ------------------------------------------------------------------------------- curves

    def _figures(self, _request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        run = asked.text("run")
        names = None if run is None else self._catalog.get(run).curves.names()
        return {"figures": [] if names == [] else curves.described(names)}

    def _steps(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        return self._of(request).curves.series(
            asked.texts("names"),
            asked.count("from") or 0,
            asked.count("to"),
            asked.count("points", least=1, most=5000) or 2000,
        )

    def _notices(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        page, level = asked.page(), asked.text("level")
        first, last = asked.count("from"), asked.count("to")
        run = self._indexed(request)
        found = curves.in_order_of_worth(
            one
            for one in run.curves.notices()
            if (level is None or one["level"] == level)
            and (first is None or one["step"] >= first)
            and (last is None or one["step"] <= last)
        )
        part = found[page.offset : page.offset + page.limit]
        shown: list[dict[str, Any]] = []
        for one in part:
            names = attempts.named(run.index, one["attempts"])
            shown.append(one | {"attempts": list(names), "names": list(names.values())})
        return {"total": len(found), "offset": page.offset, "notices": shown}

    def _timeline(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        return self._of(request).curves.timeline(asked.count("from"), asked.count("to"))

    # ----------------------------------------------------------------------------- attempts

    def _attempts(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        wanted = asked_filter(asked, asked.source())
        sort = asked.choice("sort", attempts.SORTS) or "position"
        page, run = asked.page(), self._indexed(request)
        return attempts.attempts_page(run.index, wanted, sort, page, self._labels.of_run(run.path))

    def _groups(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        wanted = asked_filter(asked, asked.source())
        kind = asked.choice("kind", tuple(attempts.GROUP_KINDS))
        sort = asked.choice("sort", attempts.GROUP_SORTS) or "position"
        page, run = asked.page(), self._indexed(request)
        found = attempts.groups_page(
            run.index, wanted, kind, sort, page, self._labels.of_run(run.path)
        )
        for group in found["groups"]:
            task = self._tasks_of(run).get(group["task"])
            group["gold"] = task["gold"] if task else None
        return found

    def _histogram(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        wanted = asked_filter(asked, asked.source())
        measure = asked.choice("of", tuple(attempts.MEASURES)) or "reward"
        bins = asked.count("bins", least=1, most=200) or 20
        return attempts.histogram(self._indexed(request).index, wanted, measure, bins)

    def _failures(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        wanted, run = asked_filter(asked, asked.source()), self._indexed(request)
        return attempts.failures(run.index, wanted, self._labels.of_run(run.path))

    def _parting(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        step, task = group_place(asked.text("group") or "")
        return one_attempt.parting(self._indexed(request).index, asked.source(), step, task)

    def _attempt(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        place, run = attempt_place(request.path_params["attempt"]), self._indexed(request)
        labels = self._labels.of_run(run.path)
        return one_attempt.attempt(run.index, place, self._tasks_of(run), labels)

    def _message(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        kind = request.path_params["kind"]
        number = request.path_params["number"]
        if kind not in ("messages", "results") or not _COUNT.fullmatch(number):
            raise _no_route(request)
        place, run = attempt_place(request.path_params["attempt"]), self._indexed(request)
        return one_attempt.message(run.index, place, kind, int(number))

    def _tokens(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        page = asked.page(limit=2000, most=5000)
        place, run = attempt_place(request.path_params["attempt"]), self._indexed(request)
        return one_attempt.tokens(run.index, place, page, token_texts(run.path))

    def _search(self, request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        text = asked.text("q") or ""
        role = asked.choice("role", ROLES)
        source = asked.source() if asked.text("source") else None
        self._of(request).index.want_words()
        wanted, page, run = asked_filter(asked, source), asked.page(), self._indexed(request)
        labels = self._labels.of_run(run.path)
        return search.search_page(run.index, text, role, wanted, page, labels)

    def _compare(self, _request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        names = asked.every("side")
        if not 2 <= len(names) <= _MOST_SIDES:
            raise Refusal(
                400, f"side: give 2 to {_MOST_SIDES} of them", param="side", code="bad_parameter"
            )
        sort = asked.choice("sort", comparison.SORTS) or "position"
        page = asked.page()
        sides = [comparison.side_of(name, self._catalog) for name in names]
        return comparison.compared(sides, sort, page)

    # ------------------------------------------------------------------------------ lineage

    def _task(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        run, name = self._indexed(request), request.path_params["task"]
        found, history = self._tasks_of(run).get(name), task_history(run.index, name)
        if found is None and not history["sources"]:
            raise Refusal(404, f"{name[:100]}: no such task in {run.id}", code="no_task")
        if found is None:
            known = ("split", "question", "gold", "verifier", "environment", "source", "pattern")
            others = ("difficulty", "extra", "synthesis")
            found = {"task": name, **dict.fromkeys((*known, *others)), "evidence": []}
            found["question"] = attempts.question_of(run.index, name)
        documents = Documents(run.path).get(found.pop("evidence"))
        return found | {"documents": documents} | history

    def _document(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        run, name = self._of(request), request.path_params["document"]
        found = Documents(run.path).get([name])
        if not found:
            raise Refusal(404, f"{name[:100]}: no such document in {run.id}", code="no_task")
        return found[0] | {"tasks": tasks_of_document(self._tasks_of(run), name)}

    # ------------------------------------------------------------------------------- labels

    def _all_labels(self, _request: Request, asked: Parameters) -> Any:  # noqa: ANN401
        page, run_id = asked.page(), asked.text("run")
        ids = {str(run.path): run.id for run in self._catalog.all()}
        found = [
            {name: it for name, it in label.items() if name != "messages"}
            | {"run": ids.get(label["run"])}
            for label in self._labels.all()
            if run_id is None or ids.get(label["run"]) == run_id
        ]
        part = found[page.offset : page.offset + page.limit]
        return {"total": len(found), "offset": page.offset, "labels": part}

    async def _put_label(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._bounds), LabelAsked)
        return await run_in_threadpool(self._labelled, request, asked.label, asked.note)

    async def _delete_label(self, request: Request) -> Response:
        await run_in_threadpool(self._labelled, request, None, "")
        return _json({"deleted": True})

    def _labelled(self, request: Request, label: str | None, note: str) -> Response:
        run, place = self._indexed(request), attempt_place(request.path_params["attempt"])
        record = one_attempt.record_of(run.index, place)
        task = str(record.get("task_id"))
        attempt = {
            "id": str(place),
            "task": task,
            "group": f"{record['step']}/{task}",
            "messages": record["messages"],
        }
        said = self._labels.put(run.path, attempt, label, note)
        return _json(
            {name: it for name, it in said.items() if name != "messages"} | {"run": run.id}
        )

    async def _exported(self, request: Request) -> Response:
        form = Parameters(request.query_params).choice("form", ("sft", "preferences")) or "sft"
        labels = await run_in_threadpool(self._labels.all)
        rows = (sft_rows if form == "sft" else preference_rows)(labels)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return Response(
            text.encode(errors="replace"),
            media_type="application/jsonl",
            headers={"content-disposition": f'attachment; filename="{form}.jsonl"'},
        )

    # --------------------------------------------------------------------------------- talk

    def _checkpoints(self, request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        found = checkpoints(self._of(request))
        return {
            "checkpoints": [
                {"name": one.name, "stage": one.stage, "summary": one.summary} for one in found
            ]
        }

    def _said(self, _request: Request, _asked: Parameters) -> Any:  # noqa: ANN401
        return self.talks.state()

    async def _ask(self, request: Request) -> Response:
        asked = parse(await read_body(request, self._bounds), QuestionAsked)
        run = await run_in_threadpool(self._catalog.get, asked.run)
        return _json(await run_in_threadpool(self.talks.ask, run, asked))

    async def _end_talk(self, _request: Request) -> Response:
        await run_in_threadpool(self.talks.end)
        return _json(self.talks.state())

    # -------------------------------------------------------------------------------- files

    async def _unknown(self, request: Request) -> Response:
        raise _no_route(request)

    async def _page(self, request: Request) -> Response:
        return await self._static("index.html", request)

    async def _file(self, request: Request) -> Response:
        return await self._static(request.path_params["name"], request)

    async def _static(self, name: str, request: Request) -> Response:
        try:
            path = (STATIC / name).resolve()
            if not path.is_relative_to(STATIC.resolve()) or not path.is_file():
                raise _no_route(request)
            content = await run_in_threadpool(path.read_bytes)
        except (OSError, ValueError):  # a name that is too long, or has a zero byte
            raise _no_route(request) from None
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if path.suffix in (".js", ".mjs"):
            kind = "text/javascript"
        return Response(content, media_type=kind, headers=headers)


class _Guarded:
    """ASGI middleware that asks for the token, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, if it has the token."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = None if self._token is None else _admission(scope, self._token)
        await (answer or self._app)(scope, receive, with_headers)


def _admission(scope: Scope, token: str) -> Response | None:
    """Return None if the request has the token, else what answers it."""
    headers = Headers(scope=scope)
    query = QueryParams(scope["query_string"])
    if scope["path"] == "/" and _is_same(query.get("token", ""), token):
        rest = urlencode([(name, it) for name, it in query.multi_items() if name != "token"])
        answer = RedirectResponse(f"/?{rest}" if rest else "/", 303)
        answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        return answer
    # another viewer of this host, at another port, has set the same cookie: either one counts
    given = (Request(scope).cookies.get(_COOKIE), bearer(headers.get("authorization", "")))
    if any(one is not None and _is_same(one, token) for one in given):
        return None
    refusal = Refusal(
        401, "this viewer needs its token: open the address that it printed", code="not_allowed"
    )
    return JSONResponse(refusal.body(), 401, headers=dict(refusal.headers))


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _json(found: object, headers: dict[str, str] | None = None) -> Response:
    try:
        text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a record has NaN, which is no JSON
        finite = _finite(found)
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    told = {"cache-control": "no-store", **(headers or {})}
    # a lone surrogate of a model's text has no UTF-8 encoding
    return Response(text.encode(errors="replace"), media_type="application/json", headers=told)


def _finite(value: Any) -> Any:  # noqa: ANN401 (whatever JSON holds)
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(it) for key, it in value.items()}
        case list() | tuple():
            return [_finite(it) for it in value]
        case _:
            return value


def _no_route(request: Request) -> Refusal:
    return Refusal(404, f"{request.url.path[:200]}: nothing is there", code="no_route")


async def _refused(_request: Request, refusal: Refusal) -> Response:
    return JSONResponse(refusal.body(), refusal.status, headers=dict(refusal.headers))


async def _too_deep(_request: Request, _error: RecursionError) -> Response:
    refusal = Refusal(500, "a record's values lie too deep in each other", code="unreadable")
    return JSONResponse(refusal.body(), 500)


async def _not_indexed(_request: Request, error: sqlite3.Error) -> Response:
    refusal = Refusal(
        503,
        f"the index in the cache cannot be read ({error}): ask again, and if that does not help, "
        "start the viewer with another --cache",
        code="unreadable",
    )
    return JSONResponse(refusal.body(), 503, headers=dict(refusal.headers))


async def _failed(_request: Request, error: EspalierError) -> Response:
    return JSONResponse(Refusal(500, str(error), code="unreadable").body(), 500)
