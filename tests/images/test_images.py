"""What each image is, and that it works."""

import asyncio
import json
import re

import pytest

from espalier import __version__
from espalier.sandbox.podman import PodmanBackend
from espalier.sandbox.protocol import Limits
from tests.images.conftest import BUILT, ROOT, SANDBOXES, podman, run, started

every_image = pytest.mark.parametrize("name", BUILT or ["none"])
every_sandbox = pytest.mark.parametrize("name", SANDBOXES or ["none"])
every_step_image = pytest.mark.parametrize(
    "name", [name for name in BUILT if name in ("cpu", "train")] or ["none"]
)


def inspected(name):
    (found,) = json.loads(podman("image", "inspect", BUILT[name]["image"]).out)
    return found


@every_image
def test_an_image_runs_as_nobody_in_particular(name):
    assert inspected(name)["Config"]["User"] == "65532:65532"
    assert run(name, "id", "-u").out.strip() == "65532"


@every_image
def test_only_tmp_can_be_written_to(name):
    script = "for at in / /opt /usr /var /etc /tmp; do touch $at/x 2>/dev/null && echo $at; done"
    assert run(name, "sh", "-c", script).out.split() == ["/tmp"]


@every_image
def test_an_image_says_what_it_is(name):
    labels = inspected(name)["Labels"]
    assert labels["org.opencontainers.image.title"] == f"espalier-{name}"
    assert labels["org.opencontainers.image.version"] == __version__
    assert re.match(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", BUILT[name]["digest"])


@every_image
def test_nothing_of_where_it_was_built_is_in_an_image(name):
    """No configuration of pip, which may name an index with a password, and no certificates."""
    found = run(
        name, "sh", "-c", "cat /etc/pip.conf 2>/dev/null; find / -xdev -name pip.conf -size +0"
    )
    assert found.out == ""
    environment = inspected(name)["Config"]["Env"]
    assert not [entry for entry in environment if re.search(r"(?i)pip_|proxy|index|token=", entry)]
    made = podman("history", "--no-trunc", "--format={{.CreatedBy}}", BUILT[name]["image"]).out
    assert not re.search(r"index-url|://[^/\s]*@", made)


@every_step_image
def test_a_step_image_is_the_version_that_it_says(name):
    assert started(name, "--version").out.strip().endswith(__version__)


@every_step_image
def test_a_login_shell_finds_what_kuberay_starts(name):
    programs = ["espalier", "python", *(["ray"] if name == "train" else ["mlflow"])]
    for program in programs:
        found = run(name, "bash", "-lc", f"command -v {program}").out.strip()
        assert found == f"/opt/espalier/bin/{program}"


@every_step_image
def test_torch_computes_in_an_image_that_has_no_gpu(name):
    code = "import torch; print((torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())"
    assert run(name, "python", "-c", code).out.strip() == "8.0"


def test_a_stage_runs_in_the_image_of_steps(tmp_path):
    tmp_path.chmod(0o777)
    for stage in ("ingest", "synthesize"):
        said = podman(
            "run", "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=all",
            "--ulimit=nofile=4096:4096", "--ulimit=nproc=1024:1024", "--tmpfs=/tmp:rw,mode=1777",
            f"--volume={tmp_path}:/runs", BUILT["cpu"]["image"],
            "step", stage, "--profile", "smoke", "--run", "/runs/r1",
        )  # fmt: skip
        assert said.code == 0, said.err
    manifests = list((tmp_path / "r1").rglob("manifest.json"))
    assert {json.loads(path.read_text())["producer"] for path in manifests} >= {"ingest"}


def test_the_image_of_steps_has_what_backups_call():
    script = 'for one in "$@"; do command -v "$one" >/dev/null && echo "$one"; done'
    programs = ["bash", "curl", "pg_dump", "pg_restore", "rclone", "sqlite3"]
    assert run("cpu", "sh", "-c", script, "sh", *programs).out.split() == programs


@every_sandbox
def test_a_sandbox_image_answers_with_what_a_program_said(name):
    limits = Limits(memory_bytes=1 << 29, disk_bytes=1 << 26, output_bytes=1 << 16, wall_s=30.0)
    backend = PodmanBackend(image=BUILT[name]["image"], limits=limits, preimport=())

    async def said():
        sandbox = await backend.create()
        try:
            return (await sandbox.run_python("print(6 * 7)")).text
        finally:
            await sandbox.close()

    assert asyncio.run(said()).strip() == "42"


@every_sandbox
def test_a_sandbox_image_has_what_the_readme_says(name):
    table = (ROOT / "sandbox-images" / "README.md").read_text()
    (row,) = re.findall(rf"(?m)^\| {name.removeprefix('sandbox-')} \| ([^|]+) \|", table)
    programs = [{"ripgrep": "rg"}.get(thing, thing) for thing in row.strip().split(", ")]
    script = (
        'for one in "$@"; do command -v "$one" >/dev/null || '
        '/opt/sandbox/bin/python -I -c "import $one" && echo "$one"; done'
    )
    assert run(name, "sh", "-c", script, "sh", *programs).out.split() == programs
