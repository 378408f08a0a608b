"""The probe: what counts as pollution."""

import asyncio

import pytest

from espalier.sandbox import SandboxLost
from espalier.sandbox.starting import PROBE, differences, probe
from tests.fakes.scripted_sandbox import ENDED, ScriptedSandbox


def test_changed_new_and_missing_entries_are_named():
    before = {"a": 1, "b": [1, "x"], "c": None}
    assert differences(before, before) == []
    assert differences(before, {"a": 2, "b": [1, "x"], "d": 0}) == ["a", "d"]


def test_a_probe_that_fails_is_a_lost_sandbox():
    class Failing(ScriptedSandbox):
        async def run_python(self, code, **_):
            assert code == PROBE
            ended = ENDED | {"exit_status": 1}
            return type(await super().run_python(code))(stdout=b"", **ended)

    class Babbling(ScriptedSandbox):
        async def run_python(self, code, **_):
            return type(await super().run_python(code))(stdout=b"no json", **ENDED)

    for sandbox in (Failing("a"), Babbling("b")):
        with pytest.raises(SandboxLost, match="probe"):
            asyncio.run(probe(sandbox))


def test_the_probe_runs_on_the_oldest_python_of_images():
    compile(PROBE, "probe", "exec")
    assert "file_digest" not in PROBE or "hashlib" in PROBE
