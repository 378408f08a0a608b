"""The client: which answer means what, over a server that is told what to say."""

import asyncio
import gzip
import json
from dataclasses import asdict
from unittest.mock import patch

import httpx2
import pytest

from espalier.sandbox import Limits, SandboxLost, SandboxRefused, SandboxTimeout
from espalier.sandbox.client import SandboxClient, Token, cleanup_on_failure, server_settings
from sandboxd.wire import RunEnd, end_frame, output_frame

END = RunEnd(
    exit_status=0, signal=None, killed_by=None, truncated=False,
    duration_s=0.1, cpu_s=0.0, max_rss_bytes=1,
)  # fmt: skip


EXEC = ("exec", ["true"])


def _ending(**fields):
    return json.dumps({"end": asdict(END) | fields}).encode() + b"\n"


def _client(answer):
    transport = httpx2.MockTransport(answer)
    with patch.object(httpx2, "AsyncHTTPTransport", lambda **_: transport):
        return SandboxClient("box", Limits(wall_s=0.1), Token(), "http://box")


def _ask(answer, method, *arguments):
    return asyncio.run(getattr(_client(answer), method)(*arguments))


def test_frames_become_a_result():
    frames = (
        output_frame("stdout", b"a") + output_frame("stderr", b"e") + output_frame("stdout", b"b")
    )
    result = _ask(lambda _: httpx2.Response(200, content=frames + end_frame(END)), *EXEC)
    assert (result.stdout, result.stderr, result.exit_status) == (b"ab", b"e", 0)
    assert result.succeeded


@pytest.mark.parametrize(
    "body",
    [
        b"", output_frame("stdout", b"a"), b"not json\n", b"[]\n", b"[" * 100_000 + b"\n",
        b'{"stream": "other", "data": ""}\n', b'{"end": {}}\n', _ending(exit_status=[]),
        _ending(duration_s=float("nan")), _ending(signal=9), b"x" * 300_000,
        output_frame("stdout", bytes(60_000)) * 40 + end_frame(END),
    ],
)  # fmt: skip
def test_an_answer_without_a_proper_end_is_a_lost_sandbox(body):
    with pytest.raises(SandboxLost, match="box"):
        _ask(lambda _: httpx2.Response(200, content=body), *EXEC)


def test_a_compressed_answer_is_not_unpacked():
    packed = gzip.compress(output_frame("stdout", b"a") + end_frame(END))
    with pytest.raises(SandboxLost, match="compressed"):
        _ask(
            lambda _: httpx2.Response(200, headers={"content-encoding": "gzip"}, content=packed),
            *EXEC,
        )


@pytest.mark.parametrize(
    "said", [b"", b'{"reset": "other"}', b'{"bytes": 2}', b'{"snapshot": "../x"}']
)
@pytest.mark.parametrize("call", [("reset", None), ("put", "path", b"x"), ("snapshot",)])
def test_only_a_server_that_says_so_has_done_it(call, said):
    with pytest.raises(SandboxLost, match=r"say|snapshot"):
        _ask(lambda _: httpx2.Response(200, content=said), *call)


def test_a_reset_and_a_written_file_are_confirmed():
    _ask(lambda _: httpx2.Response(200, content=b'{"reset": null}'), "reset", None)
    _ask(lambda _: httpx2.Response(200, content=b'{"reset":"ab"}'), "reset", "ab")
    _ask(lambda _: httpx2.Response(200, content=b'{"bytes":1}'), "put", "path", b"x")


@pytest.mark.parametrize("status", [400, 404, 409, 413, 429, 507])
def test_a_refusal_says_why(status):
    def answer(_):
        return httpx2.Response(status, json={"error": "because"})

    for call in (EXEC, ("get", "x"), ("put", "x", b""), ("reset", "name"), ("python", "1")):
        with pytest.raises(SandboxRefused, match="because") as refusal:
            _ask(answer, *call)
        assert refusal.value.status == status


@pytest.mark.parametrize("status", [401, 302, 500, 502, 503])
def test_any_other_answer_is_a_lost_sandbox(status):
    with pytest.raises(SandboxLost, match=str(status)):
        _ask(lambda _: httpx2.Response(status, content=b"proxy error"), *EXEC)


def test_a_broken_connection_loses_the_sandbox_without_resending():
    asked = []

    def answer(request):
        asked.append(request)
        raise httpx2.ReadError("reset by peer")

    with pytest.raises(SandboxLost, match="reset by peer"):
        _ask(answer, *EXEC)
    assert len(asked) == 1


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr("espalier.sandbox.client._SERVER_TIME_S", 0.05)
    monkeypatch.setattr("espalier.sandbox.client._TRANSFER_S", 0.05)

    async def answer(_):
        await asyncio.sleep(10)

    with pytest.raises(SandboxLost, match=r"0\.15 s"):
        _ask(answer, *EXEC)
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


@pytest.mark.parametrize("path", ["\ud800", "x" * 70_000])
def test_what_cannot_be_sent_is_refused_without_losing_the_sandbox(path):
    for call in (("get", path), ("put", path, b""), ("put", "x", bytes(65 * 2**20))):
        with pytest.raises(SandboxRefused):
            _ask(lambda _: httpx2.Response(500), *call)


@pytest.mark.parametrize("call", [EXEC, ("get", "x"), ("reset",), ("snapshot",)])
def test_a_closed_sandbox_is_lost_to_its_borrower(call):
    async def use_after_close():
        client = _client(lambda _: httpx2.Response(200, content=b"{}"))
        await client.close_connections()
        await getattr(client, call[0])(*call[1:])

    with pytest.raises(SandboxLost, match="closed"):
        asyncio.run(use_after_close())


@pytest.mark.parametrize("ending", [ValueError(), asyncio.CancelledError()])
def test_a_failed_block_is_cleaned_up_and_reraises(ending):
    done = []

    async def step(name):
        done.append(name)

    async def block(ending):
        async with cleanup_on_failure(lambda: step("first"), lambda: step("second")):
            if ending:
                raise ending

    asyncio.run(block(None))
    assert done == []
    with pytest.raises(type(ending)):
        asyncio.run(block(ending))
    assert done == ["first", "second"]
