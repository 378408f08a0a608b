"""The command that builds images, with an engine that writes down what it is told."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "components" / "build_images.py"
ENGINE = """#!/bin/sh
echo "$@" >> "{folder}/told"
case "$1" in
  create) echo c0 ;;
  export) cat "{folder}/files.tar" ;;
  image) echo '[{{"Id": "sha256:1", "Digest": "sha256:2", "Size": 3}}]' ;;
  push) for word in "$@"; do case "$word" in
    --digestfile=*) printf sha256:4 > "${{word#--digestfile=}}" ;;
  esac; done ;;
esac
"""


@pytest.fixture
def engine(tmp_path):
    """A program that does what podman would be told to, and what it was told."""
    with tarfile.open(tmp_path / "files.tar", "w") as tar:
        text = b"Metadata-Version: 2.1\nName: minio\nVersion: 7.2.20\n"
        member = tarfile.TarInfo(
            "./opt/x/lib/python3.11/site-packages/minio-7.2.20.dist-info/METADATA"
        )
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    program = tmp_path / "engine"
    program.write_text(ENGINE.format(folder=tmp_path))
    program.chmod(0o755)
    return program


def told(engine):
    path = engine.parent / "told"
    return path.read_text().splitlines() if path.exists() else []


def command(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_an_image_is_built_listed_and_labelled_with_its_list(engine, tmp_path):
    pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not installed: make install")
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nindex-url = https://user:hush@index.example/simple\n")
    out = tmp_path / "out"
    done = command("build", "cpu", "--engine", engine, "--out", out, "--pip-conf", conf)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "localhost/espalier-cpu:0.2.0 sha256:2\n"
    build, created, exported, removed, label, _ = told(engine)
    assert "--target=cpu" in build
    assert f"--secret=id=pip,src={conf}" in build
    assert re.search(r"--build-arg=PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64} ", build)
    assert [line.split()[0] for line in (created, exported, removed)] == ["create", "export", "rm"]
    digest = hashlib.sha256((out / "espalier-cpu.cdx.json").read_bytes()).hexdigest()
    assert f"--label=dev.espalier.contents.sha256={digest}" in label
    assert "hush" not in "".join(told(engine))
    built = json.loads((out / "images.json").read_text())
    assert built["cpu"]["contents"] == "espalier-cpu.cdx.json"


def test_what_was_built_is_pushed_and_named_by_digest(engine, tmp_path):
    built = {"cpu": {"image": "localhost/espalier-cpu:0.2.0"}}
    (tmp_path / "images.json").write_text(json.dumps(built))
    where = ("--engine", engine, "--out", tmp_path, "--registry", "r.example/team")
    done = command("push", *where)
    assert done.stdout == "r.example/team/espalier-cpu@sha256:4\n"
    (push,) = told(engine)
    assert push.endswith("localhost/espalier-cpu:0.2.0 docker://r.example/team/espalier-cpu:0.2.0")
    refused = command("push", "train", *where)  # was not built
    assert (refused.returncode, "train" in refused.stderr) == (1, True)
    assert told(engine) == [push]


@pytest.mark.parametrize(
    ("image", "engine", "code", "said"),
    [("gpu", "true", 2, "cpu, train, rollout"), ("cpu", "false", 1, "ended with 1")],
)
def test_a_build_that_fails_is_one_message(tmp_path, image, engine, code, said):
    done = command("build", image, "--engine", engine, "--out", tmp_path)
    assert (done.returncode, said in done.stderr) == (code, True)
    assert "Traceback" not in done.stderr
