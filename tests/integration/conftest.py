import asyncio

import pytest

from espalier.sandbox import LocalBackend, SandboxUnavailable


@pytest.fixture(scope="session")
def local_sandboxes():
    """For tests that need them: skips where this machine has none."""

    async def tried():
        await (await LocalBackend(packages=(), preimport=()).create()).close()

    try:
        asyncio.run(tried())
    except SandboxUnavailable as error:
        pytest.skip(f"no local sandboxes: {error}"[:200])
