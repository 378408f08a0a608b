"""What building the images would do, read off the Dockerfile; no image is built here."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from espalier.cluster.objects.pods import USER
from espalier.config import RayConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "components" / "Dockerfile"
SCRIPT = ROOT / "components" / "image_requirements.py"
TARGETS = ("cpu", "train", "rollout")
SECRETIVE = re.compile(r"token(?!izers)|passw|secret|credential|api_?key|index_url", re.IGNORECASE)


def instructions(text):
    """(keyword, rest) of each instruction, comments gone and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages():
    """Instructions by stage, each with what its base stages did first."""
    found, name = {}, None
    for keyword, rest in instructions(DOCKERFILE.read_text()):
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [("FROM", base), *found.get(base, [])]
        elif name is not None:
            found[name].append((keyword, rest))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_its_own_python_and_no_root(target):
    users = [rest for keyword, rest in stages()[target] if keyword == "USER"]
    assert users == [f"{USER}:{USER}"]
    assert [keyword for keyword, _ in stages()[target]][-2:] == ["ENTRYPOINT", "CMD"]
    first, *_ = (rest for keyword, rest in stages()[target] if keyword == "RUN")
    assert first.startswith("python3 -m venv /opt/espalier")
    paths = [rest for keyword, rest in stages()[target] if keyword == "ENV" and "PATH" in rest]
    assert paths[0].startswith("PATH=/opt/espalier/bin:")


def test_no_secret_becomes_part_of_an_image():
    for keyword, rest in instructions(DOCKERFILE.read_text()):
        if keyword in ("ARG", "ENV", "LABEL"):
            assert not SECRETIVE.search(rest), rest
        if keyword == "RUN" and re.search(r"pip (install|wheel)", rest):
            assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in rest or "--no-index" in rest
        assert keyword != "ADD"


def test_nothing_that_is_installed_may_be_another_version_tomorrow():
    (base,) = (r for k, r in instructions(DOCKERFILE.read_text()) if k == "ARG" and "IMAGE" in r)
    assert re.fullmatch(r"PYTHON_IMAGE=\S+/python:3\.11[\w.-]+@sha256:[0-9a-f]{64}", base)
    (version,) = (r for k, r in stages()["rollout"] if k == "ARG")
    assert re.fullmatch(r"VLLM_VERSION=\d+\.\d+\.\d+", version)
    # the version that a profile tells KubeRay
    assert f"\nray=={RayConfig().version}\n" in (ROOT / "constraints.txt").read_text()


def written(tmp_path, extra):
    """The files of an image, as the build writes them."""
    source, out = tmp_path / extra, tmp_path / f"{extra}-out"
    (source / "packages").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, source)
    for path in (ROOT / "components").glob("*/pyproject.toml"):
        shutil.copy(path, source / "packages" / f"{path.parent.name}.toml")
    command = [sys.executable, SCRIPT, "--source", source, "--out", out, "--extra", "train"]
    subprocess.run([*command, "--extra", extra], check=True)
    return {path.name: path.read_text() for path in out.iterdir()}


def names(text):
    return {re.split(r"[=<>!~\[ ;(]", line)[0].lower() for line in text.splitlines()}


def test_whatever_is_installed_is_pinned_and_torch_the_same(tmp_path):
    found = written(tmp_path, "cluster")
    pins, libraries = found["torch.txt"], names(found["libraries.txt"])
    assert all("==" in line for line in pins.splitlines())
    needed = "\n".join(line for line in requires("torch") if "extra ==" not in line)
    assert {name.replace("_", "-") for name in names(needed)} | {"torch"} <= names(pins)
    assert "torch" not in libraries
    assert {"kfp", "boto3"} <= libraries <= names(found["constraints.txt"])
    assert pins == written(tmp_path, "ray")["torch.txt"]


def test_the_image_that_ingests_reads_documents(tmp_path):
    (told,) = (rest for _, rest in stages()["requirements"] if "--out /cpu" in rest)
    assert "--extra documents" in told.partition("&&")[0]
    found = written(tmp_path, "documents")
    assert {"markitdown", "openpyxl"} <= names(found["libraries.txt"])
    assert {"markitdown", "mammoth", "pdfplumber", "onnxruntime"} <= names(found["constraints.txt"])
    assert "markitdown" not in names(written(tmp_path, "ray")["libraries.txt"])
