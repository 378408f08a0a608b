"""Every test of this folder runs on every backend that the machine has."""

import asyncio

import pytest

from espalier.sandbox import SandboxUnavailable
from tests.integration.sandbox.backends import BACKENDS, AbsentError


@pytest.fixture(scope="session")
def run():
    """Runs a coroutine on the one event loop that sandboxes live on."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request, run):
    reason = ""
    try:
        for candidate in BACKENDS[request.param]():
            try:
                run(_open_and_close(candidate))
            except SandboxUnavailable as error:
                reason = str(error)
            else:
                return candidate
    except AbsentError as error:
        reason = str(error)
    return pytest.skip(f"{request.param}: {reason[:200]}")


@pytest.fixture(scope="session")
def kept_sandbox(backend, run):
    sandbox = run(backend.create())
    yield sandbox
    run(sandbox.close())


@pytest.fixture
def sandbox(kept_sandbox, run):
    """One that other tests used before, as a pool would hand it out."""
    yield kept_sandbox
    run(kept_sandbox.reset())


@pytest.fixture
def own_sandbox(backend, run):
    """One for a test that might break it."""
    sandbox = run(backend.create())
    yield sandbox
    run(sandbox.close())


async def _open_and_close(backend):
    await (await backend.create()).close()
