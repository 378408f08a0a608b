"""Every test of this folder runs on every backend that the machine has."""

import asyncio

import pytest

from espalier.sandbox import SandboxUnavailable
from tests.integration.sandbox.backends import (
    BACKENDS,
    ON_THIS_MACHINE,
    AbsentError,
    first_that_works,
)


@pytest.fixture(scope="session")
def run():
    """Runs a coroutine on the one event loop that sandboxes live on."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request, run):
    try:
        chosen = run(first_that_works(BACKENDS[request.param]()))
    except (AbsentError, SandboxUnavailable) as error:
        pytest.skip(f"{request.param}: {str(error)[:200]}")
    yield chosen
    run(chosen.close())


@pytest.fixture
def seen_from_here(backend):
    """For tests that look at a sandbox's processes, or kill them, from outside of it."""
    if backend.name not in ON_THIS_MACHINE:
        pytest.skip(f"{backend.name}: its processes are those of another machine")


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
