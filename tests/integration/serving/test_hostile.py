"""What is too much, too slow, too large or no request at all harms nobody else."""

import random
import socket
import threading
import time

import pytest

from tests.integration.serving.live import (
    PacedEngine,
    listening_endpoint,
    lockstep,
    wait_until,
)

TEXT = "/v1/completions"
ASKED = {"model": "tiny", "prompt": [20, 21], "max_tokens": 20}


def ask(client, **fields):
    return client.post(TEXT, json={**ASKED, **fields})


def raw(client, sent, *, waits_s=2.0):
    """Send bytes as they are; returns what came back until the server closed or fell silent."""
    with socket.create_connection((client.base_url.host, client.base_url.port), 5) as line:
        line.settimeout(waits_s)
        received = b""
        try:
            line.sendall(sent)
            while part := line.recv(65_536):
                received += part
        except OSError:
            pass
        return received


def post(body, *headers):
    lines = [f"POST {TEXT} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.fixture(scope="module")
def client():
    with listening_endpoint(lockstep(), max_body_bytes=4096, body_timeout_s=0.3) as client:
        yield client


def test_a_body_that_is_too_large_is_refused(client):
    declared = client.post(TEXT, json={**ASKED, "user": "x" * 5000})
    assert declared.status_code == 413
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    assert b" 413 " in raw(client, post(chunk * 6, "transfer-encoding: chunked"))


def test_a_body_that_does_not_arrive_is_given_up(client):
    assert b" 408 " in raw(client, post(b'{"mod', "content-length: 100"))


def test_only_a_body_declared_as_json_is_read(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post(TEXT, content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [400]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 80]}, "prompt"),
        ({"prompt": list(range(200))}, "prompt"),
        ({"prompt": ["x"] * 17}, "prompt"),
        ({"n": 17}, "n"),
        ({"max_tokens": 1 << 60}, "prompt"),
        ({"model": "../../etc/passwd"}, "model"),
    ],
)
def test_what_the_policy_cannot_do_is_refused_in_openais_shape(client, fields, param):
    answer = ask(client, **fields)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] in ("invalid_request_error", "not_found_error")


def test_unknown_paths_and_methods_are_refused_in_openais_shape(client):
    for answer in (client.get("/nowhere"), client.get(TEXT), client.delete("/v1/models")):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]["message"]


def test_broken_http_and_bent_requests_harm_nobody(client):
    dice = random.Random(0)
    whole = post(b'{"model":"tiny","prompt":[20],"max_tokens":2}', "content-length: 45")
    for number in range(60):
        sent = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(sent))
            if dice.random() < 0.5:
                sent[at] = dice.randrange(256)
            else:
                del sent[at : at + dice.randrange(1, 40)]
        if number % 10 == 0:
            sent = bytearray(dice.randbytes(200))
        answer = raw(client, bytes(sent), waits_s=0.5)
        assert b" 500 " not in answer[:40], bytes(sent)
    assert raw(client, b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000, waits_s=0.5)[:12] in (
        b"HTTP/1.1 431",
        b"",
    )
    assert ask(client).status_code == 200


def test_control_tokens_in_a_message_do_not_break_the_template(client):
    for content in ("{{ 7 * 7 }}", "{% raw %}", "<|end|><|assistant|>", "\0\N{SNOWMAN}", "a" * 200):
        messages = [{"role": "user", "content": content}]
        asked = {"model": "tiny", "messages": messages, "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=asked).status_code in (200, 400)


def test_beyond_the_places_requests_are_refused_at_once():
    engine = PacedEngine(rows=1, token_s=0.02)
    with listening_endpoint(engine, rows=1, max_waiting=1, max_choices=2) as client:
        holding = [threading.Thread(target=ask, args=(client,)) for _ in range(2)]
        for thread in holding:
            thread.start()
        wait_until(lambda: "taken 2" in client.get("/metrics").text)
        refused = ask(client)
        for thread in holding:
            thread.join()
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert ask(client).status_code == 200


def test_an_answer_that_takes_too_long_frees_its_row():
    engine = PacedEngine(rows=1, token_s=0.2)
    with listening_endpoint(engine, request_timeout_s=0.3) as client:
        began_s = time.monotonic()
        late = ask(client)
        assert late.status_code == 504
        assert "0.3 s" in late.json()["error"]["message"]
        streamed = ask(client, stream=True)
        assert streamed.status_code == 200
        assert "not answered within" in streamed.text
        assert "[DONE]" not in streamed.text
        assert time.monotonic() - began_s < 10
        wait_until(lambda: engine.open_sessions == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_its_row_back(stream):
    engine = PacedEngine(rows=1, token_s=0.02)
    with listening_endpoint(engine, context=5000) as client:
        sent = f'{{"model":"tiny","prompt":[20],"max_tokens":4000,"stream":{str(stream).lower()}}}'
        line = socket.create_connection((client.base_url.host, client.base_url.port))
        line.sendall(post(sent.encode(), f"content-length: {len(sent)}"))
        wait_until(lambda: engine.open_sessions == 1)
        line.close()
        wait_until(lambda: engine.open_sessions == 0)
        assert ask(client).status_code == 200
        assert 'status="499"' in client.get("/metrics").text


def test_a_client_that_leaves_the_queue_is_forgotten():
    engine = PacedEngine(rows=1, token_s=0.02)
    with listening_endpoint(engine) as client:
        holding = threading.Thread(target=ask, args=(client,), kwargs={"max_tokens": 60})
        holding.start()
        wait_until(lambda: engine.open_sessions == 1)
        sent = b'{"model":"tiny","prompt":[20],"max_tokens":9}'
        line = socket.create_connection((client.base_url.host, client.base_url.port))
        line.sendall(post(sent, f"content-length: {len(sent)}"))
        wait_until(lambda: "taken 2" in client.get("/metrics").text)
        line.close()
        wait_until(lambda: "taken 1" in client.get("/metrics").text)
        holding.join()
        wait_until(lambda: engine.open_sessions == 0)
        assert engine.sampled == 60


def test_a_broken_engine_makes_the_pod_unhealthy():
    with listening_endpoint(PacedEngine(breaks=True)) as client:
        assert client.get("/healthz").status_code == 200
        broken = ask(client)
        assert broken.status_code == 500
        assert "out of memory" in broken.json()["error"]["message"]
        assert client.get("/healthz").status_code == 503
        assert client.get("/readyz").status_code == 503


def test_probes_are_answered_while_the_engine_is_at_work():
    class Busy(PacedEngine):
        async def open(self, prompt_ids, sampling):
            time.sleep(1.0)  # as a step over a long prompt holds its thread
            return await super().open(prompt_ids, sampling)

    with listening_endpoint(Busy()) as client:
        asking = threading.Thread(target=ask, args=(client,))
        asking.start()
        wait_until(lambda: "taken 1" in client.get("/metrics").text)
        began_s = time.monotonic()
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - began_s < 0.9
        asking.join()
