"""Silent, slow and broken connections: each ends in time, and harms no request beside it."""

import contextlib
import json
import re
import socket
import struct
import threading
import time

import pytest

from espalier.wire.connections import MAX_HEAD_BYTES, RESERVED_PLACES
from tests.factories import smuggled
from tests.integration.serving.live import PacedEngine, listening_endpoint, lockstep
from tests.integration.waiting import wait_until

TEXT = "/v1/completions"
ASKED = {"model": "tiny", "prompt": [20, 21], "max_tokens": 2}
QUICK = {"head_timeout_s": 0.3, "body_timeout_s": 0.3, "idle_timeout_s": 0.3}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def connected(client):
    line = socket.create_connection((client.base_url.host, client.base_url.port), 5)
    line.settimeout(10)
    return line


def rest(line):
    """What the server says until it closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65_536):
            said += part
    return said


def asked_raw(client, sent):
    with connected(client) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(sent)
        return rest(line)


def posted(**fields):
    body = json.dumps({**ASKED, **fields}).encode()
    return HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body


def refusal(said, status):
    """The error object of a response that was written by the server itself."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), said
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def closed_by(client, cause):
    found = re.findall(rf'closed_connections_total{{cause="{cause}"}} (\d+)', metrics(client))
    return int(found[0]) if found else 0


def metrics(client):
    return client.get("/metrics").text


@pytest.fixture(scope="module")
def client():
    with listening_endpoint(lockstep(), max_body_bytes=4096, **QUICK) as client:
        yield client


def test_a_silent_connection_is_closed_without_a_word(client):
    with connected(client) as line:
        assert rest(line) == b""


@pytest.mark.parametrize("sent", [b"GET /hea", HEAD])
def test_a_head_that_stops_is_refused_in_openais_shape(client, sent):
    assert refusal(asked_raw(client, sent), 408)["type"] == "timeout_error"


def test_a_head_that_trickles_in_gains_no_time(client):
    with connected(client) as line:
        line.sendall(b"GET /health HTTP/1.1\r\n")
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began_s < 5:
                line.sendall(b"x: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began_s < 4


def test_a_body_that_stops_or_trickles_is_refused(client):
    said = asked_raw(client, HEAD + b"content-length: 100\r\n\r\n{")
    refusal(said, 408)
    assert b"\r\nconnection: close\r\n" in said
    refusal(asked_raw(client, HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"), 408)


def test_a_connection_between_two_requests_is_closed_in_time(client):
    with connected(client) as line:
        line.sendall(posted())
        said = line.recv(65_536)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" not in said
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert rest(line).endswith(b"ok\n")


def test_a_body_that_nobody_reads_keeps_no_connection(client):
    sent = b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    assert asked_raw(client, sent + b"x" * 500_000).endswith(b"ok\n")
    refusal(asked_raw(client, HEAD + b"content-length: 9999999\r\n\r\n" + b"x" * 900_000), 413)
    chunks = (b"400\r\n" + b"x" * 1024 + b"\r\n") * 6
    assert b" 413 " in asked_raw(client, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks)


@pytest.mark.parametrize("kind", smuggled.KINDS)
def test_no_request_hides_in_the_body_of_another(client, kind):
    sent = smuggled.smuggled(kind)
    with connected(client) as line:
        assert smuggled.statuses(line, sent) == [400]
    with connected(client) as line:  # nor behind one that was answered
        assert smuggled.statuses(line, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + sent) == [
            200,
            400,
        ]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * MAX_HEAD_BYTES, 431),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (b"DELETE /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 405),
    ],
)
def test_what_is_no_request_is_refused_in_openais_shape(client, sent, status):
    assert refusal(asked_raw(client, sent), status)["message"]


def test_a_client_that_waits_to_continue_is_refused_quietly(client, caplog):
    sent = HEAD + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    refusal(asked_raw(client, sent), 400)
    assert not caplog.records


def test_silent_connections_give_their_places_to_requests():
    slow = {"head_timeout_s": 60, "body_timeout_s": 60, "idle_timeout_s": 60}
    with listening_endpoint(lockstep(), max_connections=8, **slow) as client:
        client.get("/healthz")
        lines = [connected(client) for _ in range(60)]
        for kind, line in enumerate(lines):
            with contextlib.suppress(ConnectionError):
                line.sendall((b"", b"GET /", HEAD + b"content-length: 9\r\n\r\n{")[kind % 3])
            if kind % 10 == 0:
                with connected(client) as asking:
                    asking.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                    assert rest(asking).endswith(b"ok\n")
        assert client.post(TEXT, json=ASKED).status_code == 200
        found = int(re.findall(r"connections (\d+)\.0\n", metrics(client))[0])
        assert found <= 8 + RESERVED_PLACES
        assert closed_by(client, "shed") >= 60 - 8 - RESERVED_PLACES
        for line in lines:
            line.close()


def test_when_all_places_are_answered_probes_still_are():
    engine = PacedEngine(rows=8, token_s=0.02)
    with listening_endpoint(engine, rows=8, max_connections=2, context=5000) as client:
        lines = [connected(client) for _ in range(2)]
        for line in lines:
            line.sendall(posted(max_tokens=400))
        wait_until(lambda: engine.open_sessions == 2)
        refused = client.post(TEXT, json=ASKED)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "serving.max_connections" in refused.json()["error"]["message"]
        for path in ("/healthz", "/readyz", "/health", "/metrics"):
            assert client.get(path).status_code == 200
        for line in lines:
            line.close()
        wait_until(lambda: client.post(TEXT, json=ASKED).status_code == 200)


LONG = {"max_tokens": 60_000, "stream": True, "return_token_ids": True}


def reads_nothing(client, **fields):
    line = connected(client)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.sendall(posted(**{**LONG, **fields}))
    return line


def test_a_client_that_never_reads_is_dropped():
    engine = PacedEngine(rows=1, token_s=0.0)
    with (
        listening_endpoint(
            engine, context=200_000, max_context=200_000, rows=1, write_timeout_s=0.5
        ) as client,
        reads_nothing(client, max_tokens=150_000),
    ):
        wait_until(lambda: closed_by(client, "write") == 1)
        wait_until(lambda: engine.open_sessions == 0)
        wait_until(lambda: "serving_taken 0.0\n" in metrics(client))


def test_a_client_that_never_reads_makes_room_for_others():
    engine = PacedEngine(rows=4, token_s=0.0)
    settings = {"rows": 1, "max_waiting": 1, "max_choices": 1, "write_timeout_s": 60}
    with (
        listening_endpoint(engine, context=200_000, max_context=200_000, **settings) as client,
        reads_nothing(client),
        reads_nothing(client),
    ):
        wait_until(lambda: "serving_taken 2.0\n" in metrics(client))
        wait_until(lambda: client.post(TEXT, json=ASKED).status_code == 200)


@pytest.mark.parametrize(
    ("leaves", "stream"),
    [("closed", True), ("closed", False), ("half-closed", False), ("reset", False)],
)
def test_a_client_that_leaves_gives_its_row_back(leaves, stream):
    engine = PacedEngine(rows=1, token_s=0.02)
    with listening_endpoint(engine, context=5000) as client:
        line = connected(client)
        line.sendall(posted(max_tokens=4000, stream=stream))
        wait_until(lambda: engine.open_sessions == 1)
        if leaves == "half-closed":
            line.shutdown(socket.SHUT_WR)
        elif leaves == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if leaves != "half-closed":
            line.close()
        wait_until(lambda: engine.open_sessions == 0)
        line.close()
        assert client.post(TEXT, json=ASKED).status_code == 200
        if leaves == "closed":
            assert 'status="499"' in metrics(client)


def test_the_server_ends_though_connections_are_silent():
    with listening_endpoint(lockstep(), head_timeout_s=60, idle_timeout_s=60) as client:
        lines = [connected(client) for _ in range(5)]
        client.get("/healthz")
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5
    for line in lines:
        line.close()


def asking(client, **fields):
    thread = threading.Thread(target=client.post, args=(TEXT,), kwargs={"json": ASKED | fields})
    thread.start()
    return thread


def test_a_client_that_leaves_the_queue_is_forgotten():
    engine = PacedEngine(rows=1, token_s=0.02)
    with listening_endpoint(engine) as client:
        holding = asking(client, max_tokens=60)
        wait_until(lambda: engine.open_sessions == 1)
        line = connected(client)
        line.sendall(posted(max_tokens=9))
        wait_until(lambda: "taken 2" in metrics(client))
        line.close()
        wait_until(lambda: "taken 1" in metrics(client))
        holding.join()
        wait_until(lambda: engine.open_sessions == 0)
        assert engine.sampled == 60


def test_probes_are_answered_while_the_engine_is_at_work():
    class Busy(PacedEngine):
        async def open(self, prompt_ids, sampling):
            time.sleep(1.0)  # as a step over a long prompt holds its thread
            return await super().open(prompt_ids, sampling)

    with listening_endpoint(Busy()) as client:
        thread = asking(client)
        wait_until(lambda: "taken 1" in metrics(client))
        began_s = time.monotonic()
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - began_s < 0.9
        thread.join()
