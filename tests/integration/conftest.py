import asyncio
import shutil

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


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()
