"""One thread a process: the policies of the tests are too small to share between cores."""

import asyncio
import atexit
import gc
import inspect
import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# of the runs that have more: a thread that waits for work leaves its core to the other workers
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _stack_without_sources(context=0):
    """The frames of the caller, by default without looking for their sources.

    For each setting of each step KFP asks the whole stack for one function's name, and the search
    goes through all modules that are loaded: most of the time in which a pipeline is compiled.
    """
    frame = sys._getframe(1)
    if context:
        return inspect.getouterframes(frame, context)
    found = []
    while frame is not None:
        code = frame.f_code
        where = (code.co_filename, frame.f_lineno, code.co_name)
        found.append(inspect.FrameInfo(frame, *where, None, None))
        frame = frame.f_back
    return found


inspect.stack = _stack_without_sources


# The objects that pytest makes when it collects tests stay to the end: garbage collections, which
# walk all of them, took half of that time, and a tenth of the tests' own.
gc.disable()


def pytest_collection_finish():
    gc.enable()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else libraries report what they kept as leaks


@pytest.fixture(autouse=True)
def one_thread_again():
    """After a test whose stage took the threads of its profile."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def local_sandboxes():
    """For tests that need them: skips where this machine has none."""
    from espalier.sandbox import SandboxUnavailable
    from espalier.sandbox.local import LocalBackend

    async def tried():
        await (await LocalBackend(packages=(), preimport=()).create()).close()

    try:
        asyncio.run(tried())
    except SandboxUnavailable as error:
        pytest.skip(f"no local sandboxes: {error}"[:200])
