"""Pages in a browser get nothing of a server that asks for no key."""

import asyncio

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from espalier.wire.browsers import BrowserGuard

HERE = "127.0.0.1:8000"


def answer(headers, *, on_loopback=True):
    """The status of an application that answers everything, behind the guard."""
    app = BrowserGuard(PlainTextResponse("in"), lambda: on_loopback)

    async def ask():
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/metrics", headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "host",
    [
        HERE, "127.0.0.1", "localhost:8000", "LOCALHOST:8000", "[::1]:8000", "192.168.1.7:8000",
        "host.docker.internal:8000", "host.containers.internal", "mine.localhost:8000", "gpu-7",
        "localhost.", "127.0.0.2:1",
    ],
)  # fmt: skip
def test_programs_call_a_local_server_by_any_unsold_name(host):
    expected = 403 if host == "localhost." else 200  # no client writes it
    assert answer({"host": host}).status_code == expected
    assert answer({"host": host}, on_loopback=False).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "127.0.0.1.nip.io:8000", "localhost.evil.example",
        "a.local:8000", "internal.example", "evil.example.", "xn--e1afmkfd.xn--p1ai",
        "user@localhost", "localhost/", "127.0.0.1.:8000",
    ],
)  # fmt: skip
def test_a_name_that_can_be_looked_up_again_is_refused(host):
    refused = answer({"host": host})
    assert refused.status_code == 403
    assert host[:12] in refused.json()["error"]["message"]
    # with an address that others reach anyway, the server may have any name
    assert answer({"host": host}, on_loopback=False).status_code == 200


@pytest.mark.parametrize("on_loopback", [True, False])
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example", "http://evil.example:8000", "http://localhost:8000", "null", "",
        "http://127.0.0.1", "http://127.0.0.1:8001", "https://127.0.0.1", "file://",
        "chrome-extension://abcdef", "http://127.0.0.1:8000.evil.example",
        "http://127.0.0.1:8000@evil.example", "http://[::1]:8000", "http://127.0.0.1:8000/",
    ],
)  # fmt: skip
def test_a_page_of_another_site_is_refused(origin, on_loopback):
    refused = answer({"host": HERE, "origin": origin}, on_loopback=on_loopback)
    assert refused.status_code == 403
    assert "page of another site" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HERE, f"http://{HERE}"),
        (HERE, f"HTTP://{HERE}"),
        ("localhost", "http://localhost:80"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost"),
        ("[::1]:9", "http://[::1]:9"),
    ],
)
def test_a_page_of_the_servers_own_is_answered(host, origin):
    assert answer({"host": host, "origin": origin}).status_code == 200


def test_two_origins_are_as_good_as_the_worse():
    both = [("host", HERE), ("origin", f"http://{HERE}"), ("origin", "http://evil.example")]
    assert answer(both).status_code == 403
    assert answer([*both[:2], ("origin", f"http://{HERE}")]).status_code == 200
