"""Every block of a page is run, or says why not."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib

import pytest
import typer
from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.config import Profile
from tests.factories.sample_run import make_run
from tests.unit.docs.fences import FENCES, ROOT, fences, has_test

SHELL = [fence for fence in FENCES if fence.language in ("sh", "bash", "shell", "console")]
README_SHELL = [f for f in fences(ROOT / "README.md") if "espalier " in f.text]
RUN = [fence for fence in SHELL if fence.says == "run"]
PYTHON_PAGES = sorted({fence.page for fence in FENCES if fence.language == "python"})
TOML = [fence for fence in FENCES if fence.language == "toml" and fence.says != "not run"]
PROFILES = [fence for fence in TOML if fence.page not in PYTHON_PAGES]
"""Those of the other pages name what the page defines, and are parsed where it is."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def words_of(command):
    """A command without leading variables, as VAR=value."""
    while command and re.match(r"[A-Z_0-9]+=", command[0]):
        command = command[1:]
    return command


def test_there_are_blocks_of_every_sort():
    assert len(SHELL) > 20
    assert len(RUN) > 4
    assert len(PROFILES) > 5
    assert len(PYTHON_PAGES) == 4


def test_a_block_is_run_tested_or_excused():
    for fence in FENCES:
        if fence.language == "python":
            assert fence.says in ("", "file", "needs"), fence
        elif fence in SHELL:
            assert fence.says in ("run", "tested", "not run"), fence
        if fence.says == "not run":
            assert len(fence.about) > 10, f"{fence}: say why nobody runs it"


@pytest.mark.parametrize("fence", [f for f in FENCES if f.says in ("tested", "not run")], ids=str)
def test_tests_that_a_block_names_are_there(fence):
    named = re.findall(r"(tests/[\w./]+\w)(::(\w+))?", fence.about)
    assert named or fence.says == "not run"
    for path, _, name in named:
        assert (ROOT / path).exists(), path
        assert not name or has_test(path, name), name


def accept(command):
    """Parse the arguments of an espalier command, without running it."""
    parsed, words, path = typer.main.get_command(command_line()), command[1:], ["espalier"]
    while hasattr(parsed, "commands") and words and words[0] in parsed.commands:
        parsed = parsed.commands[words[0]]
        path.append(words[0])
        words = words[1:]
    if hasattr(parsed, "commands"):
        assert words in (["--help"], ["--version"]), f"no such command: {' '.join(command)}"
    else:
        parsed.make_context(" ".join(path), words)


@pytest.mark.parametrize("fence", [*SHELL, *README_SHELL], ids=str)
def test_commands_have_the_arguments_that_a_page_gives(fence):
    for command in map(words_of, fence.commands):
        match command:
            case ["espalier", *_]:
                accept(command)
            case ["make", target, *_]:
                assert target in TARGETS
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), module


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a finished run, as the pages have it."""
    make_run(tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("fence", RUN, ids=str)
def test_commands_of_a_page_succeed(home, fence):
    for command in fence.commands:
        assert command[0] == "espalier", "only espalier's own commands are run here"
        done = CliRunner().invoke(command_line(), command[1:])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("fence", PROFILES, ids=str)
def test_a_toml_block_is_a_profile(fence):
    Profile.model_validate(tomllib.loads(fence.text))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The files of all pages: a user's own modules, beside the library as it is."""
    folder = tmp_path_factory.mktemp("pages")
    for fence in FENCES:
        if fence.says == "file":
            (folder / fence.about).write_text(fence.text, "utf-8")
    return folder


def script_of(page, *, sandboxed):
    """The Python blocks of a page in order, between them its TOML blocks as profiles."""
    parts = ["import tomllib", "from espalier.config import Profile"]
    for fence in FENCES:
        if fence.page != page or fence.says in ("file", "not run"):
            continue
        if fence.language == "python" and (fence.says == "needs") == sandboxed:
            parts.append(fence.text)
        elif fence.language == "toml":
            parts.append(f"Profile.model_validate(tomllib.loads({fence.text!r}))")
    return "\n".join(parts)


def run_script(script, folder):
    variables = {"PYTHONPATH": f"{ROOT / 'components'}:{folder}", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_code_of_a_page_does_what_it_says(written, page):
    done = run_script(script_of(page, sandboxed=False), written)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_code_of_a_page_runs_in_sandboxes(written, local_sandboxes):
    (page,) = {fence.page for fence in FENCES if fence.says == "needs"}
    done = run_script(script_of(page, sandboxed=True), written)
    assert done.returncode == 0, done.stderr
