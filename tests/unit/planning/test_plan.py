import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from espalier.chain import STAGES
from espalier.cli import command_line
from espalier.config import Profile, load_profile
from espalier.orchestration import runs
from espalier.planning import (
    Limits,
    PlanOrder,
    make_plan,
    mebibytes,
    plan_text,
    read_probe,
    run_probe,
)
from espalier.planning.machine import Machine
from espalier.planning.probe import PROBE_STEPS, probe_profile
from espalier.planning.probe_figures import probe_figures
from espalier.planning.sizes import policy_size
from espalier.records import ArtifactError, ProfileError
from tests.factories.measured_run import PEAKS_MIB, SECONDS, make_measured_run

PROFILES = Path(__file__).parents[3] / "pipelines" / "profiles"
ONE_GPU = Path(__file__).parents[2] / "benchmarks" / "baselines" / "one_gpu.json"
MACHINE = Machine(cores=2, memory_mib=16_000.0, disk_mib=10_000.0, accelerator_mib=None)
OWN = Profile.model_validate(
    {
        "name": "own",
        "threads": 1,
        "training": {"steps": 20, "tasks_per_step": 8, "group_size": 8},
        "warm_start": {"steps": 30, "evaluate_every": 15},
        "synthesis": {"heldout_tasks": 200, "train_tasks": 2000},
    }
)


def planned(profile=OWN, measured=None, machine=MACHINE, **limits):
    given = {"measured": measured or {}, "machine": machine, "limits": Limits(**limits)}
    return make_plan(PlanOrder(profile=profile, **given))


def shorter(steps):
    return OWN.model_copy(update={"training": OWN.training.model_copy(update={"steps": steps})})


@pytest.fixture
def espalier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(command_line(), ["plan", *arguments])


def test_a_probe_planned_from_itself_is_what_it_was(tmp_path):
    probe = shorter(2)
    measured = probe_figures(probe, make_measured_run(tmp_path / "own", probe))
    needs = planned(probe, measured).needs
    assert needs.peak_mib == pytest.approx(PEAKS_MIB["train"], rel=0.05)
    for stage in ("ingest", "synthesize", "validate", "prepare_policy"):
        assert needs.seconds[stage] == pytest.approx(SECONDS[stage], rel=0.02), stage
    before, after = (planned(shorter(n), measured).needs.seconds["train"] for n in (20, 40))
    assert after == pytest.approx(2 * before, rel=0.1)


def test_every_limit_has_its_fault():
    made = planned(memory_mib=10.0, disk_mib=1.0, hours=0.0001)
    assert [fault.what for fault in made.faults] == ["memory", "disk", "hours"]
    text = plan_text(made)
    assert "does not fit: memory" in text
    assert "hardware.micro_batch_tokens" in text


def test_accelerators_are_counted_where_stages_compute():
    plan = planned(accelerator_mib=10.0)
    assert plan.needs.accelerators == 1
    assert [fault.what for fault in plan.faults] == ["accelerator memory"]
    assert planned().needs.accelerators == planned().needs.accelerator_hours == 0
    sections = OWN.model_dump(mode="json") | {"kubernetes": {"gpus": {"count": 2}}}
    needs = planned(Profile.model_validate(sections)).needs
    computing = sum(taken for stage, taken in needs.seconds.items() if STAGES[stage].uses_policy)
    assert needs.accelerator_hours == pytest.approx(2 * computing / 3600)
    assert needs.accelerator_mib > 0


def test_memory_of_a_gpu_is_planned_as_it_was_measured():
    """Within 15 % when it was fitted; the profile may be tuned since."""
    measured = json.loads(ONE_GPU.read_text())["devices"]["cuda"]["stages"]
    needs = planned(load_profile(PROFILES / "tiny.toml"), accelerator_mib=80_000.0).needs
    for stage, row in measured.items():
        if stage == "continue_pretraining":  # does nothing there
            assert needs.memory[stage].accelerator_mib == 0
        else:
            assert needs.memory[stage].accelerator_mib == pytest.approx(
                row["gpu_held_mib"], rel=0.2
            ), stage


@pytest.fixture
def probed(tmp_path, monkeypatch):
    """A folder of runs that keeps a probe of OWN."""

    def run_in_process(profile, run_dir, say):
        make_measured_run(run_dir, profile)

    monkeypatch.setattr(runs, "run_in_process", run_in_process)
    run_probe(OWN, MACHINE, tmp_path, print)
    return tmp_path


def test_a_probe_leaves_one_small_file_for_later_plans(probed):
    (kept,) = probed.rglob("*.json")
    assert list(probed.iterdir()) == [kept.parent]
    assert kept.stat().st_size < 2000
    longer = shorter(500).model_copy(update={"name": "another", "seed": 3})
    measured = read_probe(longer, MACHINE, probed)
    assert measured["ingest_s"] == SECONDS["ingest"]
    assert measured["demonstration_tokens"] == 30.0
    assert "--probe measures" in plan_text(planned(longer))
    assert "--probe measures" not in plan_text(planned(longer, measured))


def test_a_probe_is_of_its_model_threads_and_environment(probed):
    def other(changed):
        return Profile.model_validate(OWN.model_dump(mode="json") | changed)

    for changed in ({"threads": 2}, {"policy": {"hidden_size": 64}}):
        assert read_probe(other(changed), MACHINE, probed) == {}
    own = read_probe(OWN, MACHINE, probed)
    shop = read_probe(other({"environment": {"name": "shop"}}), MACHINE, probed)
    assert "episode_tokens" not in shop, "it has speeds but no lengths"
    assert shop["update_token_s"] == own["update_token_s"]
    (kept,) = probed.rglob("*.json")
    kept.write_text("{")
    with pytest.raises(ArtifactError, match="--probe"):
        read_probe(OWN, MACHINE, probed)


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_profile_can_be_planned_and_probed(path):
    profile = load_profile(path)
    plan = planned(profile)
    assert plan.faults == []
    assert 1000 < plan.needs.peak_mib < 8000
    assert list(plan.needs.seconds) == list(STAGES)
    probe = probe_profile(profile)
    assert policy_size(probe.policy) == policy_size(profile.policy)
    assert probe.training.steps == PROBE_STEPS
    assert probe.training.group_size == profile.training.group_size
    assert probe.hardware == profile.hardware
    assert planned(probe).needs.hours < (0.1 if profile.policy.model is None else 0.2)


def test_the_command_plans_writes_nothing_and_tells_what_fits(espalier):
    done = espalier("--profile", "smoke")
    assert done.exit_code == 0, done.output
    assert "estimated, not measured" in done.stdout
    assert "fits: memory" in done.stdout
    assert not Path("runs").exists()
    done = espalier("--profile", "tiny", "--hours", "0.17")
    assert done.exit_code == 1
    assert "does not fit: time" in done.stdout
    assert "training.steps" in done.stdout


def test_json_has_every_stage_and_the_price(espalier):
    Path("prices.toml").write_text('currency = "USD"\nmachine_hour = 3600.0\n')
    done = espalier("--prices", "prices.toml", "--json", "--memory", "64GiB")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["stages"]) == list(STAGES)
    assert found["cost"] == pytest.approx(found["seconds"], rel=0.01)
    assert found["currency"] == "USD"
    assert found["limits"]["memory_mib"] == 64 * 1024


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--memory", "0GiB"], "0GiB", 1),
        (["--budget", "3"], "--prices", 2),
        (["--hours", "nan"], "above 0", 2),
        (["--prices", "none.toml"], "none.toml", 1),
    ],
)
def test_a_faulty_option_is_one_message(espalier, arguments, message, code):
    done = espalier(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_amounts_have_units():
    for text, expected in (("16GiB", 16384.0), ("1.5 GiB", 1536.0), ("1GB", 1e9 / 2**20)):
        assert mebibytes(text) == pytest.approx(expected)
    for text in ("", "16", "GiB", "-1GiB", "1e3GiB", "16gib", "nanGiB"):
        with pytest.raises(ProfileError, match="amount"):
            mebibytes(text)
