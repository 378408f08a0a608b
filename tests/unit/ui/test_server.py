"""Who may ask the viewer, and what it says when it cannot serve."""

import os
import socket
import subprocess
import sys

import httpx2
import pytest

from espalier.records import ServingError
from espalier_ui.server import token_for
from tests.factories.viewed_run import Viewer, write_run

TOKEN = "a-token-of-enough-characters"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    write_run(folder / "run", steps=1)
    made = Viewer([folder / "run"], folder, TOKEN)
    yield made
    made.catalog.close()


def test_loopback_needs_no_token_and_others_do():
    assert token_for("127.0.0.1", None) is token_for("localhost", None) is None
    drawn = {token_for("0.0.0.0", None) for _ in range(3)}
    assert len(drawn) == 3
    assert token_for("127.0.0.1", TOKEN) == TOKEN
    with pytest.raises(ServingError, match="5 characters"):
        token_for("0.0.0.0", "short")


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/app.js", "/?token=wrong", "/nothing"])
def test_nothing_is_answered_without_the_token(guarded, path):
    assert guarded.ask(path).status_code == 401
    assert TOKEN not in guarded.ask(path).text


def test_token_comes_by_header_cookie_or_address(guarded):
    assert guarded.ask("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    answer = guarded.ask(f"/?token={TOKEN}&run=run")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?run=run")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert guarded.ask("/api/runs", headers={"cookie": cookie.split(";")[0]}).status_code == 200
    assert guarded.refusal(f"/api/runs?token={TOKEN}") == (401, "not_allowed")


def test_another_viewers_cookie_shuts_nobody_out(guarded):
    headers = {"cookie": "espalier_ui=other", "authorization": f"Bearer {TOKEN}"}
    assert guarded.ask("/api/runs", headers=headers).status_code == 200


def test_a_label_needs_the_token_too(guarded):
    answer = guarded.ask("/api/labels/run/train-0-0", "PUT", json={"label": "good"})
    assert answer.status_code == 401
    assert not guarded.labels.path.exists()


def test_a_label_is_no_form_that_a_page_elsewhere_sends(guarded):
    allowed = {"authorization": f"Bearer {TOKEN}", "content-type": "text/plain"}
    answer = guarded.ask(
        "/api/labels/run/train-0-0", "PUT", content=b'{"label": "good"}', headers=allowed
    )
    assert answer.status_code == 415


def started(*arguments):
    script = "import sys\nfrom espalier_ui.commands import app\napp(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", script, "ui", *arguments],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    write_run(tmp_path / "run", steps=1)
    own = ("--cache", str(tmp_path / "cache"), "--labels", str(tmp_path / "labels.jsonl"))
    process = started(str(tmp_path / "run"), "--port", "0", *own)
    try:
        line = process.stderr.readline()
        assert line.startswith("1 run at http://127.0.0.1:")
        address = line.split()[-1]
        assert httpx2.get(f"{address}api/runs").json()["total"] == 1
        foreign = httpx2.get(f"{address}api/runs", headers={"host": "evil.example"})
        assert foreign.status_code == 403
        raw = _raw(address, b"GET /static/../../records/streams.py HTTP/1.1\r\nhost: localhost\r\n")
        assert b" 404 " in raw.split(b"\r\n")[0]
    finally:
        process.send_signal(2)
        assert process.wait(20) == 0


def _raw(address, head):
    """The answer to bytes that no client would send."""
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head + b"connection: close\r\n\r\n")
        found = b""
        while part := connection.recv(4096):
            found += part
        return found


@pytest.mark.slow
def test_the_printed_address_works_with_any_token(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPALIER_UI_TOKEN", "a+b/c=d&e#f%41 enough")
    write_run(tmp_path / "run", steps=1)
    own = ("--cache", str(tmp_path / "cache"), "--labels", str(tmp_path / "labels.jsonl"))
    process = started(str(tmp_path / "run"), "--port", "0", *own)
    try:
        address = process.stderr.readline().split()[-1]
        with httpx2.Client(follow_redirects=True) as client:
            assert client.get(address).status_code == 200
            assert "token" not in str(client.get(address).url)
    finally:
        process.send_signal(2)
        assert process.wait(20) == 0


@pytest.mark.slow
def test_a_taken_port_is_said_in_one_line(tmp_path):
    write_run(tmp_path / "run", steps=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ((str(tmp_path / "run"), "--port", port), "cannot be served on"),
            ((str(tmp_path / "none"),), "no such folder"),
        ):
            process = started(*arguments)
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors.count("\n")) == (1, 1)
            assert said in errors
