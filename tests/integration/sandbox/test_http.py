"""sandboxd's HTTP face, without espalier's client: whatever comes, it answers and goes on."""

import asyncio
import contextlib
import json
import socket

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.factories import smuggled

pytestmark = pytest.mark.contract

_QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_LIMITS = st.fixed_dictionaries(
    {},
    optional={
        name: _JSON | st.integers(-2, 2**70)
        for name in ("memory_bytes", "cpu_s", "processes", "disk_bytes", "output_bytes", "wall_s")
    },
)
_RUN = st.fixed_dictionaries(
    {},
    optional={
        "argv": st.lists(st.text(max_size=12), max_size=4) | _JSON,
        "code": st.sampled_from(["1", "print(2)", "raise SystemExit(3)"]) | _JSON,
        "session": st.booleans() | _JSON,
        "stdin": st.sampled_from(["", "aGk=", "aGk", "~"]) | _JSON,
        "env": st.dictionaries(st.text(max_size=6), st.text(max_size=6)) | _JSON,
        "limits": _LIMITS | _JSON,
        "other": _JSON,
    },
)
_PATH = st.text(
    st.sampled_from("./\\%~\0\n ab") | st.characters(max_codepoint=0x3FF), max_size=30
) | st.sampled_from(
    ["..", "../..", "/etc/passwd", "a/../../x", "//", "./.", "x" * 300, "a/" * 3000]
)


def _ask(run, sandbox, method, url, **parts):
    async def ask():
        async with asyncio.timeout(20):
            return await sandbox.http.request(method, url, **parts)

    return run(ask())


def _connected(sandbox):
    path = sandbox.http._transport._pool._uds
    if path is None:
        address = sandbox.http.base_url
        return socket.create_connection((address.host, address.port))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def _is_an_answer(response):
    assert response.status_code in {200, 400, 401, 404, 405, 409, 413, 429, 507}, response.text
    if response.status_code != 200:
        assert json.loads(response.text)["error"]


@_QUICK
@given(asked=_RUN)
def test_whatever_is_asked_to_run_gets_an_answer(run, sandbox, asked):
    limits = asked.get("limits")
    if isinstance(limits, dict | type(None)):
        asked = asked | {"limits": {"wall_s": 2} | (limits or {})}
    _is_an_answer(_ask(run, sandbox, "POST", "/run", content=json.dumps(asked)))


@_QUICK
@given(
    body=st.binary(max_size=200), path=st.sampled_from(["/run", "/reset", "/snapshot", "/files"])
)
def test_whatever_the_body_is_gets_an_answer(run, sandbox, body, path):
    _is_an_answer(_ask(run, sandbox, "POST", path, content=body))


@_QUICK
@given(path=_PATH, content=st.binary(max_size=50))
def test_whatever_the_path_a_file_is_inside_or_refused(run, sandbox, path, content):
    written = _ask(run, sandbox, "PUT", "/files", params={"path": path}, content=content)
    _is_an_answer(written)
    read = _ask(run, sandbox, "GET", "/files", params={"path": path})
    _is_an_answer(read)
    if written.status_code == 200:
        assert read.content == content
        assert ".." not in path.split("/")
        assert not path.startswith("/")


@_QUICK
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"]),
    path=st.sampled_from(
        ["/", "/run", "/files", "/healthz", "/metrics", "/reset/", "/%2e%2e", "*"]
    ),
    query=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_whatever_the_method_and_address_there_is_an_answer(run, sandbox, method, path, query):
    url = path if path.startswith("/") else f"/{path}"
    response = _ask(run, sandbox, method, url, params=query)
    assert response.status_code in {200, 307, 400, 404, 405}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        [("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
    ],
)
def test_without_the_token_only_health_and_metrics_answer(run, sandbox, header):
    async def ask():
        inside = sandbox.http._transport
        requests = [
            ("POST", "/run"), ("GET", "/files?path=x"), ("PUT", "/files?path=x"),
            ("POST", "/reset"), ("POST", "/snapshot"), ("GET", "/"), ("GET", "/nowhere"),
            ("GET", "/healthz"), ("GET", "/metrics"),
        ]  # fmt: skip
        said = []
        for method, path in requests:
            request = httpx2.Request(method, sandbox.http.base_url.join(path), headers=header)
            response = await inside.handle_async_request(request)
            await response.aread()
            said.append(response.status_code)
        return said

    assert run(ask()) == [401] * 7 + [200] * 2


def test_output_is_streamed_while_the_program_runs(run, sandbox):
    async def first_line():
        loop = asyncio.get_running_loop()
        asked = json.dumps({"argv": ["sh", "-c", "echo early; sleep 8"]})
        started = loop.time()
        async with sandbox.http.stream("POST", "/run", content=asked) as response:
            async for line in response.aiter_lines():
                return json.loads(line), loop.time() - started

    frame, after_s = run(first_line())
    assert (frame["stream"], frame["data"]) == ("stdout", "ZWFybHkK")
    assert after_s < 4


def test_metrics_have_prometheus_format(run, sandbox):
    run(sandbox.exec(["false"]))
    text = run(sandbox.http.get("/metrics")).text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
    assert 'sandboxd_runs_total{kind="exec",ended_by="itself"}' in text
    assert 'sandboxd_run_seconds_bucket{le="+Inf"}' in text


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET",
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
        b"POST /run HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /run HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999\r\n\r\nx",
        b"POST /run HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 200,
    ],
)
def test_broken_and_abandoned_connections_do_no_harm(run, sandbox, said):
    for _ in range(5):
        with _connected(sandbox) as connection:
            connection.settimeout(5)
            with contextlib.suppress(ConnectionError):  # it may hang up in the midst of nonsense
                connection.sendall(said)
    assert run(sandbox.exec(["echo", "on"])).stdout == b"on\n"


@pytest.mark.parametrize("kind", smuggled.KINDS)
def test_no_request_hides_in_the_body_of_another(run, sandbox, kind):
    for path in ("/healthz", "/run"):  # answered before the body has come, and after
        with _connected(sandbox) as connection:
            assert smuggled.statuses(connection, smuggled.smuggled(kind, path)) == [400]
    assert run(sandbox.exec(["echo", "on"])).stdout == b"on\n"


def test_a_client_that_never_reads_stops_only_its_program(run, sandbox):
    secret = sandbox.http.headers["authorization"]
    asked = json.dumps({"argv": ["yes"], "limits": {"output_bytes": sandbox.limits.output_bytes}})
    with _connected(sandbox) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(
            f"POST /run HTTP/1.1\r\nhost: x\r\nauthorization: {secret}\r\n"
            f"content-length: {len(asked)}\r\n\r\n{asked}".encode()
        )
        for _ in range(3):
            assert run(sandbox.exec(["echo", "on"])).stdout == b"on\n"
