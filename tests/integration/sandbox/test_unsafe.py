"""Where a machine cannot isolate, nothing runs; where nobody is root, all of it works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espalier.sandbox import SandboxUnavailable
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.podman import PodmanBackend

_NOBODY = "65534"
_USE = """
import asyncio, json
from espalier.sandbox import SandboxUnavailable
from espalier.sandbox.local import LocalBackend
async def main():
    try:
        sandbox = await LocalBackend().create()
    except SandboxUnavailable as error:
        return {"refused": str(error)}
    try:
        bomb = await sandbox.exec(["sh", "-c", "f() { f | f & }; (f) & exec sleep 5"], timeout_s=1)
        return {
            "said": (await sandbox.python("6 * 7")).text,
            "user": (await sandbox.exec(["id", "-u"])).text,
            "bomb": bomb.killed_by,
        }
    finally:
        await sandbox.close()
print(json.dumps(asyncio.run(main())))
"""


@pytest.fixture
def interpreter():
    """A Python like this one that a user without rights can run, and its environment."""
    path = os.pathsep.join(filter(None, [*sys.path, str(Path.cwd() / "components")]))
    for candidate in (sys.executable, "/usr/bin/python3"):
        words = ["setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups", candidate]
        same = (
            f"import sys, espalier.sandbox; assert sys.version_info[:2] == {sys.version_info[:2]}"
        )
        environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
        tried = subprocess.run(
            [*words, "-c", same], env=environment, capture_output=True, check=False
        )
        if tried.returncode == 0:
            return words, environment
    return pytest.skip("no Python like this one that another user may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; nothing to show")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_user_without_rights_gets_the_same_sandbox(interpreter, run):
    words, environment = interpreter
    done = subprocess.run(
        [*words, "-c", _USE], env=environment, capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)
    assert found == {"said": "42\n", "user": "1000\n", "bomb": "wall_time"}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is not installed")
def test_without_user_namespaces_nothing_runs():
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    use = (sys.executable, "-c", _USE)
    done = subprocess.run(
        [*("unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"), *use],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        pytest.skip(f"this machine gives no user namespaces at all: {done.stderr[-200:]}")
    refused = json.loads(done.stdout)["refused"]
    assert "need Linux with bubblewrap and user namespaces" in refused
    assert "namespace" in refused.partition("without: ")[2]


def test_without_bubblewrap_nothing_runs(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="no bwrap on PATH"):
        run(LocalBackend().create())


def test_without_podman_nothing_runs(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="no podman on PATH"):
        run(PodmanBackend(image="any").create())


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_an_image_that_is_not_here_is_not_fetched(run):
    with pytest.raises(SandboxUnavailable, match="no-such-image"):
        run(PodmanBackend(image="localhost/no-such-image").create())


def test_sandboxd_refuses_to_be_anything_but_process_1():
    environment = {"SANDBOXD_TOKEN_SHA256": "0" * 64, "SANDBOXD_LISTEN": "127.0.0.1:0"}
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pid 1" in done.stderr
