"""A run connects to the servers that it will ask before its first stage."""

import socket
import time

import pytest

from espalier.config import Profile
from espalier.orchestration.endpoints import asked_endpoints, check_endpoints
from espalier.orchestration.runs import run_in_process
from espalier.records import EngineError

TEACHER = {"kind": "endpoint", "endpoint": {"url": "http://127.0.0.1:1/v1", "model": "m"}}
VLLM = {"engine": "vllm", "vllm": {"urls": "http://127.0.0.1:1"}}


@pytest.fixture
def open_url():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def profile(**sections):
    return Profile.model_validate(sections)


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({}, []),
        ({"teacher": TEACHER}, ["teacher.endpoint.url"]),
        ({"teacher": {**TEACHER, "kind": "embedded"}}, []),
        ({"rollout": VLLM}, ["rollout.vllm.urls"]),
        ({"rollout": {**VLLM, "engine": "lockstep"}}, []),
        ({"endpoints": {"other": TEACHER["endpoint"]}}, []),
        ({"teacher": TEACHER, "rollout": VLLM}, ["rollout.vllm.urls", "teacher.endpoint.url"]),
    ],
)
def test_servers_that_the_stages_ask_are_found(sections, keys):
    assert sorted(key for key, _ in asked_endpoints(profile(**sections))) == keys


def test_a_server_that_listens_is_accepted(open_url):
    check_endpoints(profile(teacher={**TEACHER, "endpoint": {"url": open_url, "model": "m"}}))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1"])
def test_a_server_that_is_away_is_named(url, tmp_path):
    began = time.monotonic()
    asking = profile(teacher={**TEACHER, "endpoint": {"url": url, "model": "m"}})
    with pytest.raises(EngineError, match=r"teacher\.endpoint\.url") as refused:
        run_in_process(asking, tmp_path / "run", print)
    assert url in str(refused.value)
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 15


def test_a_server_behind_a_proxy_is_left_to_the_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    check_endpoints(profile(teacher=TEACHER))
