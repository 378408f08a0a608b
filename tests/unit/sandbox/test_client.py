"""The client: which answer means what, over a server that is told what to say."""

import asyncio
import gzip
import json
from dataclasses import asdict
from unittest.mock import patch

import httpx2
import pytest

from espalier.sandbox import Limits, SandboxLost, SandboxRefused, SandboxTimeout
from espalier.sandbox.client import SandboxClient, Token, server_settings
from sandboxd.wire import RunEnd, end_frame, output_frame

END = RunEnd(
    exit_status=0,
    signal=None,
    killed_by=None,
    truncated=False,
    duration_s=0.1,
    cpu_s=0.05,
    max_rss_bytes=1,
)


def _client(answer):
    transport = httpx2.MockTransport(answer)
    with patch.object(httpx2, "AsyncHTTPTransport", lambda **_: transport):
        return SandboxClient("box", Limits(wall_s=0.1), Token(), "http://box")


def _ask(answer, method="exec", *arguments):
    client = _client(answer)
    return asyncio.run(
        getattr(client, method)(*(arguments if arguments or method == "snapshot" else (["true"],)))
    )


def test_frames_become_a_result():
    frames = (
        output_frame("stdout", b"a") + output_frame("stderr", b"e") + output_frame("stdout", b"b")
    )
    result = _ask(lambda _: httpx2.Response(200, content=frames + end_frame(END)))
    assert (result.stdout, result.stderr, result.exit_status) == (b"ab", b"e", 0)
    assert result.succeeded


@pytest.mark.parametrize(
    "body",
    [
        b"",
        output_frame("stdout", b"a"),
        b"not json\n",
        b'{"stream": "other", "data": ""}\n',
        b"[]\n",
        b"[" * 100_000 + b"\n",
        b'{"end": {}}\n',
        b'{"end": ' + json.dumps({**asdict(END), "exit_status": []}).encode() + b"}\n",
        b'{"end": ' + json.dumps({**asdict(END), "killed_by": "x"}).encode() + b"}\n",
        b'{"end": ' + json.dumps({**asdict(END), "duration_s": float("nan")}).encode() + b"}\n",
        b'{"end": ' + json.dumps({**asdict(END), "signal": 9}).encode() + b"}\n",
        b"x" * 300_000,
        output_frame("stdout", bytes(60_000)) * 40 + end_frame(END),
    ],
)
def test_an_answer_without_a_proper_end_is_a_lost_sandbox(body):
    with pytest.raises(SandboxLost, match="box"):
        _ask(lambda _: httpx2.Response(200, content=body))


def test_a_compressed_answer_is_not_unpacked():
    packed = gzip.compress(output_frame("stdout", b"a") + end_frame(END))
    with pytest.raises(SandboxLost, match="compressed"):
        _ask(lambda _: httpx2.Response(200, headers={"content-encoding": "gzip"}, content=packed))


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"snapshot": 5}', b'{"snapshot": "../x"}'])
def test_a_snapshot_has_a_plain_name(body):
    with pytest.raises(SandboxLost, match="snapshot"):
        _ask(lambda _: httpx2.Response(200, content=body), "snapshot")


@pytest.mark.parametrize("said", [b"", b"{}", b"no", b'{"reset": "other"}', b'{"bytes": 2}'])
@pytest.mark.parametrize(("method", "arguments"), [("reset", (None,)), ("put", ("path", b"x"))])
def test_only_a_server_that_says_so_has_done_it(method, arguments, said):
    with pytest.raises(SandboxLost, match="does not say"):
        _ask(lambda _: httpx2.Response(200, content=said), method, *arguments)


def test_a_reset_and_a_written_file_are_confirmed():
    _ask(lambda _: httpx2.Response(200, content=b'{"reset": null}'), "reset", None)
    _ask(lambda _: httpx2.Response(200, content=b'{"reset":"ab"}'), "reset", "ab")
    _ask(lambda _: httpx2.Response(200, content=b'{"bytes":1}'), "put", "path", b"x")


@pytest.mark.parametrize("status", [400, 404, 409, 413, 429, 507])
def test_a_refusal_says_why(status):
    def answer(_):
        return httpx2.Response(status, json={"error": "because"})

    for call in (("exec",), ("get", "x"), ("put", "x", b""), ("reset",), ("python", "1")):
        if call == ("reset",):
            call = ("reset", "name")
        with pytest.raises(SandboxRefused, match="because") as refusal:
            _ask(answer, *call)
        assert refusal.value.status == status


@pytest.mark.parametrize("status", [401, 302, 500, 502, 503])
def test_any_other_answer_is_a_lost_sandbox(status):
    with pytest.raises(SandboxLost, match=str(status)):
        _ask(lambda _: httpx2.Response(status, content=b"proxy error"))


def test_a_broken_connection_loses_the_sandbox_without_resending():
    asked = []

    def answer(request):
        asked.append(request)
        raise httpx2.ReadError("reset by peer")

    with pytest.raises(SandboxLost, match="reset by peer"):
        _ask(answer)
    assert len(asked) == 1


def test_a_closed_sandbox_is_a_lost_one():
    async def use():
        client = _client(lambda _: httpx2.Response(200, content=end_frame(END)))
        client.mark_lost("owner")
        await client.close_connections()
        with pytest.raises(SandboxLost, match="owner"):
            await client.exec(["true"])

    asyncio.run(use())


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr("espalier.sandbox.client._SERVER_TIME_S", 0.05)
    monkeypatch.setattr("espalier.sandbox.client._TRANSFER_S", 0.05)

    async def answer(_):
        await asyncio.sleep(10)

    with pytest.raises(SandboxLost, match=r"0\.15 s"):
        _ask(answer)
    with pytest.raises(SandboxTimeout, match="/files"):
        _ask(answer, "get", "x")


def test_a_second_loss_report_during_unwinding_is_harmless():
    async def answer(_):
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.05)  # a connection takes its time to close

    async def told_twice():
        client = _client(answer)
        running = asyncio.create_task(client.exec(["true"], timeout_s=5))
        await asyncio.sleep(0.02)
        client.mark_lost("it is to end")
        await asyncio.sleep(0.02)
        client.mark_lost("it has ended")
        with pytest.raises(SandboxLost, match="it is to end"):
            await running

    asyncio.run(told_twice())


def test_a_time_limit_replaces_the_sandboxs_own():
    asked = []

    def answer(request):
        asked.append(json.loads(request.content)["limits"])
        return httpx2.Response(200, content=end_frame(END))

    client = _client(answer)
    asyncio.run(client.exec(["true"], timeout_s=0.05))
    asyncio.run(client.run_python("1", limits=Limits(cpu_s=1, wall_s=3), timeout_s=2))
    assert [(limits["wall_s"], limits["cpu_s"]) for limits in asked] == [(0.05, 60.0), (2, 1)]


def test_every_sandbox_has_a_token_of_its_own():
    tokens = [Token() for _ in range(3)]
    assert len({token.sha256 for token in tokens}) == 3
    for token in tokens:
        secret = token.header["Authorization"].split()[1]
        assert len(secret) >= 40
        assert secret not in json.dumps(server_settings(token, Limits(), ()))
        assert secret not in repr(token)


def test_too_large_a_file_is_not_sent():
    with pytest.raises(SandboxRefused, match=r"bytes|MiB"):
        _ask(lambda _: httpx2.Response(500), "put", "x", bytes(65 * 2**20))


@pytest.mark.parametrize("path", ["\ud800", "x" * 70_000])
def test_an_unsendable_path_is_refused_without_losing_the_sandbox(path):
    for call in (("get", path), ("put", path, b"")):
        with pytest.raises(SandboxRefused, match="path"):
            _ask(lambda _: httpx2.Response(500), *call)


@pytest.mark.parametrize("call", [("exec", ["true"]), ("get", "x"), ("reset",), ("snapshot",)])
def test_a_closed_sandbox_is_lost_to_its_borrower(call):
    async def use_after_close():
        client = _client(lambda _: httpx2.Response(200, content=b"{}"))
        await client.close_connections()
        await getattr(client, call[0])(*call[1:])

    with pytest.raises(SandboxLost, match="closed"):
        asyncio.run(use_after_close())
