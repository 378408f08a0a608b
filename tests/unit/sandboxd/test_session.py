"""What decides whether a session's interpreter waits for its next call."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from sandboxd import kernel, run


@pytest.mark.parametrize(("late_by", "waits"), [(60, True), (10_000, False)])
def test_an_interpreter_without_a_processor_is_waited_for(monkeypatch, late_by, waits):
    looks = iter(range(10**6))
    monkeypatch.setattr(kernel, "is_reading", lambda *_: next(looks) >= late_by)
    monkeypatch.setattr(run, "_WAITS_WITHIN_S", 0.0)  # a machine that stood still meanwhile

    async def asked():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(0.0)
            descriptors = SimpleNamespace(control=ours)
            session = SimpleNamespace(descriptors=descriptors, job_pid=1, ended=asyncio.Event())
            return await run._waits_for_a_call(session, 1.0)

    assert asyncio.run(asked()) is waits
