import json
import os
import subprocess
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner

from espalier import __version__
from espalier.cli import command_line
from espalier.config import NAMED_MODELS
from tests.factories.named_models import added_model


@pytest.fixture(scope="module")
def espalier():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(command_line(), list(arguments))


FROZEN = {
    "plan": "--profile --set --runs --probe --prices --memory --gpu-memory --disk --hours --budget "
    "--json",
    "run": "--profile --set --out --runner --json",
    "evaluate": "MODEL --run --suite --against --out --key-variable --prompt-price "
    "--completion-price --concurrency --profile --set --runs --json",
    "record": "POLICY --profile --set --out --attempts --host --port --json",
    "reward-model": "RUN --out --kind --set --json",
    "report": "RUN",
    "ui": "[RUN]... --host --port --labels --cache --export",
    "chat": "RUN --policy --question --task",
    "promote": "[MODEL] --version --force --run --runs --json",
    "rollback": "[MODEL] --run --runs --json",
    "load": "MODEL@ALIAS --out --runs",
    "versions": "[MODEL] --runs --json",
    "serve": "[MODEL] --run --host --port --profile --set --runs",
    "api-key": "NAME --file",
    "compile": "--out --profile --set --image",
    "submit": "--profile --set --name --wait --json",
    "step": "STAGE --run --profile --input --output --workspace",
    "doctor": "--profile --runs --json",
    "data check-queries": "FILE --json",
    "data collect": "URI --older-than --kept-older-than --dry-run --unpublished",
    "data export": "SOURCE --format --out --right --without-tools",
    "data fetch": "URI --out",
    "data draw-questions": "KNOWLEDGE --out --count --split --parts --ray --profile",
    "schedule create": "NAME --cron --profile --set --start --end --timezone",
    "schedule list": "--profile --set --json",
    "schedule pause": "NAME --profile --set",
    "schedule resume": "NAME --profile --set",
    "schedule delete": "NAME --profile --set",
    "runs list": "--profile --set --limit --json",
    "runs show": "RUN --profile --set --follow --json",
    "runs stop": "RUN --profile --set",
    "runs retry": "RUN --profile --set",
    "environments list": "--json",
    "environments serve": "--run --host --port --profile --set",
    "environments check": "NAME --tasks --count --set --json",
    "environments add": "NAME --out",
    "models list": "--json",
    "models add": "NAME --from --wheel",
    "models push": "NAME --to",
}


def parameters(command):
    names = set()
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        names.add(parameter.opts[0] if is_option else parameter.metavar)
    return names - {"--help"}


def test_commands_and_their_options_are_those_that_scripts_rely_on():
    found = {}
    for name, command in typer.main.get_command(command_line()).commands.items():
        inner = {f"{name} {part}": one for part, one in getattr(command, "commands", {}).items()}
        found |= inner or {name: command}
    assert {name: parameters(command) for name, command in found.items()} == {
        name: set(frozen.split()) for name, frozen in FROZEN.items()
    }


@pytest.mark.parametrize("command", FROZEN)
def test_every_command_shows_an_example(espalier, command):
    result = espalier(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"espalier {command}" in result.output.partition("Examples:")[2]


def test_help_loads_no_heavy_library_and_sets_the_environment_first():
    script = (
        "import os, sys; sys.argv = ['espalier', '--help']\n"
        "from espalier.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'mlflow', 'kfp', 'transformers', 'pandas', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(os.environ['MKL_CBWR'], os.environ['HF_HUB_OFFLINE'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "AUTO,STRICT 1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "labtop"], "laptop"),
        (["--profile", "no/such.toml"], "no/such.toml"),
        (["--set", "training.stps=3"], "training.steps"),
        (["--set", "training.steps"], "section.key=value"),
        (["--set", "training.group_size=1"], "training.group_size"),
        (["--profile", "smoke", "--out", "{file}/run"], "--out"),
    ],
)
def test_a_faulty_profile_is_one_message_and_exit_code_1(espalier, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    filled = [argument.format(file=tmp_path / "file") for argument in arguments]
    result = espalier("run", "--out", str(tmp_path / "run"), *filled)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        "report {run}",
        "chat {run} --question where",
        "evaluate {run}/policy --run {run}",
        "promote --run {run}",
    ],
)
def test_a_folder_that_is_no_run_is_refused(espalier, tmp_path, command):
    result = espalier(*command.format(run=tmp_path / "absent").split())
    assert (result.exit_code, str(tmp_path / "absent") in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "option",
    [
        "--out elsewhere",
        "--against other",
        "--set seed=1",
        "--profile smoke",
        "--runs elsewhere",
        "--key-variable KEY",
        "--prompt-price 1",
        "--completion-price 1",
        "--concurrency 2",
    ],
)
@pytest.mark.parametrize("json", ["", "--json"])
def test_an_option_that_only_suites_have_is_refused(espalier, tmp_path, option, json):
    command = f"evaluate {tmp_path}/policy --run {tmp_path} {option} {json}"
    result = espalier(*command.split())
    assert result.exit_code == 2
    assert option.split()[0] in result.stderr
    assert "--suite heldout" in result.stderr


def test_an_empty_folder_is_refused_before_anything_is_made(espalier, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    own = ("--set", "knowledge.source=folder", "--set", f"knowledge.path={documents}")
    result = espalier("run", *own, "--out", str(tmp_path / "run"))
    assert (result.exit_code, f"{documents}: no file" in result.stderr) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["documents"]


@pytest.mark.parametrize("command", ["versions", "rollback", "promote"])
def test_a_missing_registry_is_said_and_not_made(espalier, tmp_path, monkeypatch, command):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = espalier(command, "--runs", str(tmp_path))
    assert (result.exit_code, "no such registry" in result.stderr) == (1, True)
    # a given database replaces the one beside the runs
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    result = espalier(command, "--runs", str(tmp_path))
    assert f"{tmp_path}/elsewhere.db: no such registry" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_compile_writes_a_pipeline_and_says_where_pods_look(espalier, tmp_path):
    out = tmp_path / "pipeline.yaml"
    given = ("compile", "--set", "policy.model=smollm2", "--out")
    own = ("--set", "knowledge.source=folder", "--set", "knowledge.path=/documents")
    result = espalier(*given, str(out), *own)
    assert "pods read knowledge.path = /documents" in result.stderr
    assert "policy.model =" not in result.stderr
    assert str(out) in result.stdout
    assert f"espalier-cpu:{__version__}" in result.stderr
    reference = f"smollm2@{NAMED_MODELS['smollm2'].content}"
    assert reference in result.stderr
    assert next(yaml.safe_load_all(out.read_text()))["pipelineInfo"]["name"] == "data-to-model"
    refused = espalier(*given, str(tmp_path / "pipeline.txt"))
    assert (refused.exit_code, "pipeline.yaml" in refused.stderr) == (1, True)


def test_a_tracking_server_that_is_away_stops_doctor_and_run(espalier, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = espalier("doctor", "--json", "--runs", str(tmp_path))
    assert "broken" in {finding["state"] for finding in json.loads(result.stdout)}
    assert result.exit_code == 1
    result = espalier("run", "--profile", "smoke", "--out", str(tmp_path / "run"))
    assert (result.exit_code, "http://127.0.0.1:9" in result.stderr) == (1, True)
    assert not (tmp_path / "run" / "knowledge").exists()


def test_a_named_model_that_is_here_is_only_checked(espalier, tmp_path, monkeypatch):
    small = added_model(monkeypatch, tmp_path)
    model = NAMED_MODELS["small"]
    manifest = small.directory / "manifest.json"
    made = json.loads(manifest.read_text())
    made["inputs"] = {f"pypi:{model.requirement}": model.wheel_sha256}
    manifest.write_text(json.dumps(made))
    result = espalier("models", "add", "small")
    assert f"{small} is in {small.directory}" in result.stdout
    assert 'policy.model = "small"' in result.stdout
    listed = {row["name"]: row for row in json.loads(espalier("models", "list", "--json").stdout)}
    assert {name: listed[name]["is_here"] for name in ("smollm2", "small")} == {
        "smollm2": False, "small": True
    }  # fmt: skip
    assert (listed["smollm2"]["licence"], listed["small"]["reference"]) == (
        "Apache-2.0",
        str(small),
    )
    wrong = espalier("models", "add", "smollm2", "--from", "hub", "--wheel", "a.whl")
    assert (wrong.exit_code, "--wheel" in wrong.output) == (2, True)
    absent = espalier("models", "add", "smollm2", "--wheel", "nowhere/a.whl")
    assert (absent.exit_code, "no such file" in absent.output) == (2, True)


def test_a_schedule_is_read_before_the_server_is_sought(espalier, monkeypatch):
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    wrong = espalier("schedule", "create", "nightly", "--cron", "x y", "--profile", "smoke")
    assert wrong.exit_code == 1
    assert "--cron" in wrong.output
