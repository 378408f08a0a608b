import shutil

import pytest

from tests.fakes.s3_stand_in import s3_stand_in


@pytest.fixture
def s3():
    """An S3 of one's own, on loopback."""
    with s3_stand_in() as stand_in:
        yield stand_in


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
