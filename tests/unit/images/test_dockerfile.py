"""What building the images would do, read off the Dockerfile; no image is built here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espalier import determinism
from espalier.cluster.objects.pods import USER
from espalier.config import RayConfig

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "components" / "Dockerfile"
SCRIPT = ROOT / "components" / "image_requirements.py"
TARGETS = ("cpu", "train", "rollout")
STEP_TARGETS = ("cpu", "train")
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


def position(stage, pattern):
    (number,) = (n for n, (_, rest) in enumerate(stages()[stage]) if re.search(pattern, rest))
    return number


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_ends_as_a_numeric_user_without_root(target):
    users = [rest for keyword, rest in stages()[target] if keyword == "USER"]
    assert users == [f"{USER}:{USER}"]
    after = [keyword for keyword, _ in stages()[target]][-2:]
    assert after == ["ENTRYPOINT", "CMD"]


@pytest.mark.parametrize("target", STEP_TARGETS)
def test_what_changes_often_comes_last(target):
    torch = position(target, r"pip install .*--constraint \S+torch\.txt torch$")
    libraries = position(target, r"pip install .*libraries\.txt")
    code = position(target, r"pip install .*\.whl")
    assert torch < libraries < code
    assert not any(keyword == "RUN" for keyword, _ in stages()[target][code + 1 :])


@pytest.mark.parametrize("target", STEP_TARGETS)
def test_a_change_of_code_changes_one_layer(target):
    copied = [rest for keyword, rest in stages()[target] if keyword in ("COPY", "ADD")]
    assert copied == [
        "--from=requirements /train/torch.txt /requirements/",
        f"--from=requirements /{target}/libraries.txt /{target}/constraints.txt /requirements/",
        "--from=wheel /wheels /wheels",
    ]
    (install,) = (rest for _, rest in stages()[target] if ".whl" in rest)
    assert "--no-deps" in install
    assert "--no-index" in install


def test_layers_are_copied_before_they_are_installed_and_not_earlier():
    for target in STEP_TARGETS:
        done = [(k, rest) for k, rest in stages()[target] if k == "COPY" or "pip " in rest]
        assert [keyword for keyword, _ in done] == ["COPY", "RUN"] * 3


def test_both_images_of_steps_share_the_layer_of_torch():
    """Gigabytes that a node pulls once; what that of PyPI needs to be imported comes with it."""
    torch = stages()["torch"]
    for target in STEP_TARGETS:
        assert stages()[target][1 : len(torch) + 1] == torch
    (install,) = (rest for _, rest in torch if "pip install" in rest)
    assert "--no-deps" not in install


def test_the_distributions_python_is_left_alone():
    for target in TARGETS:
        first, *_ = (rest for keyword, rest in stages()[target] if keyword == "RUN")
        assert first.startswith("python3 -m venv /opt/espalier")
        paths = [rest for keyword, rest in stages()[target] if keyword == "ENV" and "PATH" in rest]
        assert paths[0].startswith("PATH=/opt/espalier/bin:")


def test_only_sources_are_sent_to_the_builder():
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for keyword, rest in instructions(DOCKERFILE.read_text())
        if keyword == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    inside = {path for path in copied if str(Path(path).parent) in kept}
    assert copied - kept - inside == {"components"}  # of which the packages are kept
    assert all((ROOT / path).exists() for path in kept)
    assert not kept & {"tests", "docs", ".git", "runs"}


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


def test_determinism_is_set_as_the_library_sets_it():
    given = " ".join(rest for keyword, rest in stages()["runtime"] if keyword == "ENV")
    values = dict(pair.split("=", 1) for pair in given.split())
    for name, value in determinism._ENVIRONMENT.items():
        assert values.get(name, value) == value


def written(tmp_path, *arguments, pyproject=None, constraints=None):
    """The files of an image, as the build writes them."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    for name, text in (("pyproject.toml", pyproject), ("constraints.txt", constraints)):
        (source / name).write_text(text or (ROOT / name).read_text())
    (source / "packages").mkdir(exist_ok=True)
    for path in (ROOT / "components").glob("*/pyproject.toml"):
        shutil.copy(path, source / "packages" / f"{path.parent.name}.toml")
    command = [sys.executable, SCRIPT, "--source", source, "--out", tmp_path / "out", *arguments]
    subprocess.run(command, check=True)
    return {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}


def names(text):
    return {re.split(r"[=<>!\[ ;]", line)[0].lower() for line in text.splitlines()}


def requirements_of(package):
    """What an installed package needs on Linux, by its own metadata."""
    from importlib.metadata import requires

    lines = [line for line in requires(package) or () if "extra ==" not in line]
    return {re.split(r"[\s=<>!~\[;(]", line)[0].lower().replace("_", "-") for line in lines}


def test_whatever_torch_may_need_is_pinned(tmp_path):
    pins = written(tmp_path, "--extra", "train", "--extra", "cluster")["torch.txt"]
    assert all("==" in line for line in pins.splitlines())
    assert requirements_of("torch") | {"torch"} <= names(pins)
    assert pins == written(tmp_path, "--extra", "train", "--extra", "ray")["torch.txt"]


@pytest.mark.parametrize(("extra", "brings"), [("cluster", "boto3"), ("ray", "ray")])
def test_libraries_are_those_of_the_project_and_pinned(tmp_path, extra, brings):
    found = written(tmp_path, "--extra", "train", "--extra", extra)
    assert names(found["libraries.txt"]) >= {"kfp", "minio", "mlflow", "websockets", brings}
    assert "torch" not in names(found["libraries.txt"])
    assert names(found["libraries.txt"]) <= names(found["constraints.txt"])


def test_another_linter_moves_no_layer(tmp_path):
    before = written(tmp_path, "--extra", "train", "--extra", "cluster")
    constraints = re.sub(r"(?m)^(ruff|pytest|pyright)==.*$", r"\1==99.0", _text("constraints.txt"))
    pyproject = _text("pyproject.toml").replace("line-length = 100", "line-length = 99")
    assert constraints != _text("constraints.txt")
    changed = {"constraints": constraints, "pyproject": pyproject}
    assert written(tmp_path, "--extra", "train", "--extra", "cluster", **changed) == before


def test_another_small_library_does_not_move_torch(tmp_path):
    before = written(tmp_path, "--extra", "train", "--extra", "cluster")
    constraints = re.sub(r"(?m)^minio==.*$", "minio==99.0", _text("constraints.txt"))
    after = written(tmp_path, "--extra", "train", "--extra", "cluster", constraints=constraints)
    assert after["torch.txt"] == before["torch.txt"]
    assert after["constraints.txt"] != before["constraints.txt"]


def test_ray_is_the_version_that_a_profile_tells_kuberay():
    assert f"\nray=={RayConfig().version}\n" in _text("constraints.txt")


def _text(name):
    return (ROOT / name).read_text()


def test_images_of_steps_have_what_stages_need():
    written = " ".join(rest for keyword, rest in stages()["requirements"] if keyword == "RUN")
    assert written.count("--extra train ") == len(STEP_TARGETS)
