"""Another server takes the policy over, under the same conditions as our own."""

import os
import subprocess
import sys
import tempfile

import pytest

from espalier.records import EspalierError
from espalier.registry.promotion import promote
from espalier.serving.fetched import become

LISTS = [sys.executable, "-c", "import os, sys; print(sys.argv[2:], os.listdir(sys.argv[1]))"]


def fetched(bench, tmp_path, *command, **variables):
    environment = {**os.environ, "MLFLOW_TRACKING_URI": bench.target.uri, **variables}
    return subprocess.run(
        [sys.executable, "-m", "espalier.serving.fetched", *command],
        env={**environment, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_gets_the_approved_versions_directory(bench, tmp_path):
    bench.register(0.6)
    promote(bench.model, bench.gate())
    done = fetched(
        bench,
        tmp_path,
        *[*LISTS, "POLICY", "--name"],
        ESPALIER_MODEL=f"models:/{bench.name}/1",
        ESPALIER_POLICY_DIGEST=bench.model.version("1").policy_digest,
    )
    assert done.returncode == 0, done.stderr
    assert "['--name']" in done.stdout
    assert "model.safetensors" in done.stdout
    refused = fetched(bench, tmp_path, *LISTS, "POLICY", ESPALIER_MODEL="")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1


NOWHERE = "no-such-program"
"""Nothing takes the place of this process, whatever is refused or not."""


@pytest.mark.parametrize(
    ("promoted", "command", "model", "message"),
    [
        (False, [NOWHERE, "POLICY"], "models:/{}/1", "gate"),
        (True, [NOWHERE, "POLICY"], "", "ESPALIER_MODEL"),
        (True, [NOWHERE], "models:/{}/1", "POLICY"),
        (True, [NOWHERE, "POLICY"], "models:/{}/1", NOWHERE),
    ],
)
def test_a_version_that_cannot_be_fetched_leaves_nothing(
    bench, tmp_path, monkeypatch, promoted, command, model, message
):
    bench.register(0.6)
    if promoted:
        promote(bench.model, bench.gate())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", bench.target.uri)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EspalierError, match=message):
        become(command, {"ESPALIER_MODEL": model.format(bench.name)})
    assert not list(tmp_path.glob("espalier-policy-*"))
