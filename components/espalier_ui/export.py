"""A run, or an excerpt of it, as one HTML file: the viewer's modules with recorded answers.

The file needs no server and asks nothing of a network. Its modules are those of `static/`, each as
a `data:` address in an import map; its data are the server's answers to the requests that the views
make. What was not recorded is said to be left out, where a view asks for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from asyncio import run as run_to_end
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message

from espalier.records import ArtifactError, write_whole

Ask = Callable[[str, Mapping[str, object]], Any]
"""Answers a path below `/api/` and its parameters, as the server would; None where there is nothing
of the kind."""

# What the views ask for by themselves (static/views): a page of a list, the bins of rewards.
_GROUPS, _ATTEMPTS, _GROUP, _TOKENS, _NOTICES, _BINS, _PAIRS = 40, 50, 200, 2000, 500, 10, 50
_BEFORE_PARTING, _AROUND_PARTING = 40, 440
_TIMELINE_STEPS = 5
_STEPS = 12  # whose groups are listed

_IMPORT = re.compile(r"""(\b(?:from|import)\s*)"(\.{1,2}/[^"]+)\"""")
_ENTRY = "app.js"
_STYLES = ("vendor/uPlot.css", "style.css")


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """How much of a run goes into the file."""

    attempts: int = 64
    """At most so many attempts with their messages and tokens; of the others only the lists."""


@dataclass
class _Recorder:
    """Asks, and keeps what was answered under the address that a view will ask for."""

    ask: Ask
    answers: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str, **asked: object) -> Any:  # noqa: ANN401 (an answer is JSON)
        given = {name: value for name, value in asked.items() if value not in (None, "")}
        address = _address(path, given)
        if address not in self.answers:
            self.answers[address] = self.ask(path, given)
        return self.answers[address]


def _address(path: str, asked: Mapping[str, object]) -> str:
    """The key of an answer: the address without escapes, its parameters in one order."""
    pairs = [
        f"{name}={one}"
        for name in sorted(asked)
        for one in (asked[name] if isinstance(asked[name], list | tuple) else (asked[name],))  # type: ignore[union-attr]
    ]
    return f"{path}?{'&'.join(pairs)}" if pairs else path


def write_export(target: Path, app: ASGIApp, run: str, excerpt: Excerpt | None = None) -> None:
    """Write one run into one HTML file.

    Args:
        target: the file; one that is there is replaced.
        app: the viewer's application, which is asked in this process.
        run: the run's id.
        excerpt: how much; by default the lists and 64 attempts.

    Raises:
        ArtifactError: the application has no such run, or cannot read it.
    """
    html = exported_run(run, asked_in_process(app), excerpt)
    write_whole(target, html)


def asked_in_process(app: ASGIApp) -> Ask:
    """Return what asks an application without a socket; None for an answer that is not 200."""

    def ask(path: str, asked: Mapping[str, object]) -> Any:  # noqa: ANN401 (an answer is JSON)
        body = bytearray()
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                body.extend(message.get("body", b""))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": urlencode(asked, doseq=True).encode(),
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 80),
        }

        async def answered() -> None:
            await app(scope, receive, send)

        run_to_end(answered())
        return json.loads(bytes(body)) if statuses == [200] else None

    return ask


def exported_run(run: str, ask: Ask, excerpt: Excerpt | None = None) -> str:
    """Return the HTML of a file with one run.

    Args:
        run: its id.
        ask: answers as the server does.
        excerpt: how much; by default the lists and 64 attempts.

    Raises:
        ArtifactError: there is no such run.
    """
    recorder = _Recorder(ask)
    _record(run, recorder, excerpt or Excerpt())
    answers = {key: said for key, said in recorder.answers.items() if said is not None}
    return _page(run, answers)


def _record(run: str, recorder: _Recorder, excerpt: Excerpt) -> None:
    base = f"/api/runs/{run}"
    detail = recorder.get(base)
    if detail is None:
        raise ArtifactError(f"{run}: no run of that name that can be read. See `espalier ui`.")
    # a reader elsewhere has no use for the folder's place, and search is left out
    detail |= {
        "path": detail["name"],
        "sources": [it | {"indexed": None} for it in detail["sources"]],
    }
    recorder.get(f"{base}/report")
    recorder.answers["/api/runs?limit=50&offset=0"] = {"total": 1, "offset": 0, "runs": [detail]}
    figures = recorder.get("/api/figures", run=run) or {"figures": []}
    recorder.get(f"{base}/steps")
    recorder.get(f"{base}/steps", names=",".join(one["name"] for one in figures["figures"]))
    notices = recorder.get(f"{base}/notices", limit=_NOTICES) or {"notices": []}
    last = detail["step"] or 0
    recorder.get(f"{base}/timeline", **{"from": max(1, last - _TIMELINE_STEPS + 1), "to": last})
    sources = [source["name"] for source in detail["sources"]]
    for source in sources:
        recorder.get(f"{base}/failures", source=source)
        for right in (None, "true", "false"):
            recorder.get(f"{base}/attempts", source=source, right=right, offset=0, limit=_ATTEMPTS)
    held_out = [name for name in ("untrained", "warm_start", "trained") if name in sources]
    sides = [f"{run}:{name}" for name in held_out[-2:]]
    if len(sides) > 1:
        recorder.get("/api/compare", side=sides, sort="differs", offset=0, limit=_PAIRS)
    chosen: dict[str, None] = {}
    for attempts in _in_order_of_worth(base, recorder, detail, notices["notices"]):
        new = [attempt for attempt in attempts if attempt not in chosen]
        if len(chosen) + len(new) > excerpt.attempts:
            continue
        for attempt in new:
            chosen[attempt] = None
            _record_attempt(base, attempt, recorder)


def _in_order_of_worth(
    base: str, recorder: _Recorder, detail: Mapping[str, Any], notices: list[Mapping[str, Any]]
) -> Iterator[list[str]]:
    """Attempts that belong together: those of notices, causes of failure, groups, then others."""
    yield from ([attempt] for notice in notices for attempt in notice["attempts"])
    sources = {source["name"]: source for source in detail["sources"]}
    for source in sources:
        failures = recorder.get(f"{base}/failures", source=source) or {"causes": []}
        for cause in failures["causes"]:
            yield [row["id"] for row in cause["examples"]]
    train = sources.get("train")
    if train is not None and train["last_step"] is not None:
        noticed = (notice["step"] for notice in notices if notice["step"])
        steps = dict.fromkeys([train["last_step"], *noticed, train["first_step"]])
        for step in list(steps)[:_STEPS]:
            yield from _groups(base, recorder, step)
    for source in sources:
        page = recorder.get(f"{base}/attempts", source=source, offset=0, limit=_ATTEMPTS)
        yield from ([row["id"]] for row in (page or {"attempts": []})["attempts"])


def _groups(base: str, recorder: _Recorder, step: int) -> Iterator[list[str]]:
    recorder.get(f"{base}/histogram", source="train", step=step, of="reward", bins=_BINS)
    page = recorder.get(
        f"{base}/groups", source="train", step=step, sort="position", offset=0, limit=_GROUPS
    )
    for group in (page or {"groups": []})["groups"]:
        yield [row["id"] for row in group["attempts"]]


def _record_attempt(base: str, attempt: str, recorder: _Recorder) -> None:
    path = f"{base}/attempts/{attempt}"
    said = recorder.get(path)
    if said is None:
        return
    if said["has_tokens"]:
        recorder.get(f"{path}/tokens", offset=0, limit=_TOKENS)
    recorder.get(f"{base}/tasks/{said['task']}")
    if said["group"] is None:
        return
    asked = {"source": said["source"], "group": said["group"]}
    recorder.get(f"{base}/attempts", **asked, limit=_GROUP)
    parting = recorder.get(f"{base}/groups/parting", **asked)
    if parting and said["has_tokens"]:
        begin = max(0, (parting["parts"] or 0) - _BEFORE_PARTING)
        recorder.get(f"{path}/tokens", offset=begin, limit=_AROUND_PARTING)


def _modules(static: Traversable) -> dict[str, str]:
    """The modules that the page loads, as sources that name each other by `espalier/PATH`."""
    sources: dict[str, str] = {}
    waiting = [_ENTRY]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        folder = PurePosixPath(name).parent

        def bare(found: re.Match[str], folder: PurePosixPath = folder) -> str:
            target = _resolved(folder, found[2])
            waiting.append(target)
            return f'{found[1]}"espalier/{target}"'

        source = static.joinpath(name).read_text(encoding="utf-8")
        sources[name] = _IMPORT.sub(bare, source)
    return sources


def _resolved(folder: PurePosixPath, specifier: str) -> str:
    parts = list(folder.parts)
    for part in PurePosixPath(specifier).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _page(run: str, answers: Mapping[str, Any]) -> str:
    static = resources.files("espalier_ui") / "static"
    imports = {
        f"espalier/{name}": "data:text/javascript;base64,"
        + base64.b64encode(source.encode()).decode("ascii")
        for name, source in _modules(static).items()
    }
    style = "\n".join(static.joinpath(name).read_text(encoding="utf-8") for name in _STYLES)
    import_map = json.dumps({"imports": imports})
    start = f'import "espalier/{_ENTRY}";'
    policy = (
        f"default-src 'none'; script-src {_hashed(import_map)} {_hashed(start)} data:; "
        f"style-src {_hashed(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    # "<" is written as an escape, so that no answer can end the element
    recorded = json.dumps({"run": run, "answers": answers}, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>espalier</title>
<style>{style}</style>
<script type="importmap">{import_map}</script>
</head>
<body>
<div id="app"><noscript>This page needs JavaScript.</noscript></div>
<script type="application/json" id="recorded-answers">{recorded}</script>
<script type="module">{start}</script>
</body>
</html>
"""


def _hashed(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
