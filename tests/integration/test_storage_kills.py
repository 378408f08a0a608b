"""A transfer whose process is killed in the middle, and the next one, which goes on."""

import os

from espalier.storage import open_location
from tests.factories.storage import artifact, files, key_of
from tests.fakes.s3_stand_in import BUCKET
from tests.integration.commands import started
from tests.integration.waiting import wait_until

URI = f"s3://{BUCKET}/runs/r17/trained_policy"
PARTS = 3
SIZE = (PARTS - 1) * (16 << 20) + 5


def transfer(s3, verb, folder):
    """A process that publishes or fetches `folder`."""
    script = (
        "import os, sys; from pathlib import Path; from espalier.storage import open_location\n"
        f"open_location({URI!r}, os.environ).{verb}(Path(sys.argv[1]))"
    )
    return started(folder, script=script, **s3.environment)


def kill_when(process, condition):
    wait_until(condition)
    process.kill()
    process.communicate()


def test_a_killed_publication_sends_the_missing_parts_alone(s3, tmp_path):
    artifact(tmp_path / "here", {"small": b"1", "weights": os.urandom(SIZE)})
    s3.fail("PUT", f"partNumber={PARTS}", "slow", times=9)
    kill_when(
        transfer(s3, "publish", tmp_path / "here"),
        lambda: s3.counted("PUT", f"partNumber={PARTS}") == 1,
    )
    place = open_location(URI, s3.environment)
    assert place.manifest() is None
    s3.faults.clear()
    s3.requests.clear()
    assert transfer(s3, "publish", tmp_path / "here").wait(timeout=60) == 0
    # the part that was on its way may have arrived after the kill
    assert s3.counted("PUT", "partNumber=") <= 1
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_killed_fetch_reads_the_rest_alone(s3, tmp_path):
    content = os.urandom(SIZE)
    artifact(tmp_path / "here", {"rows": b"1", "weights": content})
    open_location(URI, s3.environment).publish(tmp_path / "here")
    s3.requests.clear()
    weights = key_of(content, "runs/r17/trained_policy")
    s3.fail("GET", weights, "half")
    s3.fail("GET", weights, "slow", times=9)
    rows, partial = (tmp_path / ".there.fetch" / x for x in ("rows", "weights.espalier-partial"))
    kill_when(
        transfer(s3, "fetch", tmp_path / "there"),
        # files come side by side
        lambda: s3.counted("GET", weights) == 2 and rows.exists(),
    )
    assert 0 < partial.stat().st_size < SIZE
    assert not (tmp_path / "there").exists()
    s3.faults.clear()
    s3.requests.clear()
    assert transfer(s3, "fetch", tmp_path / "there").wait(timeout=60) == 0
    assert s3.counted("GET", key_of(b"1", "runs/r17/trained_policy")) == 0
    assert files(tmp_path / "there") == files(tmp_path / "here")
