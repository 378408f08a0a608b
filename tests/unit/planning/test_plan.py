import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from espalier.chain import STAGES
from espalier.cli import command_line
from espalier.config import Profile, load_profile
from espalier.planning import (
    EarlierRuns,
    Limits,
    PlanOrder,
    PriceTable,
    earlier_runs,
    make_plan,
    mebibytes,
    plan_text,
    run_probe,
)
from espalier.planning import plan as plan_module
from espalier.planning.figures import Figures
from espalier.planning.machine import Machine
from espalier.planning.probe import PROBE_STEPS, probe_profile
from espalier.planning.showing import _IN_WORDS
from espalier.planning.sizes import policy_size
from espalier.records import ProfileError
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


NO_RUNS = EarlierRuns([], [])


def planned(profile=OWN, runs=NO_RUNS, machine=MACHINE, **limits):
    order = PlanOrder(profile=profile, runs=runs, machine=machine, limits=Limits(**limits))
    return make_plan(order)


@pytest.fixture
def espalier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(command_line(), ["plan", *arguments])


def test_a_run_planned_from_itself_is_what_it_was(tmp_path):
    make_measured_run(tmp_path / "own", OWN)
    needs = planned(runs=earlier_runs(tmp_path)).needs
    assert needs.peak_mib == pytest.approx(PEAKS_MIB["train"], rel=0.02)
    for stage in ("ingest", "synthesize", "validate", "prepare_policy", "train", "evaluate"):
        assert needs.seconds[stage] == pytest.approx(SECONDS[stage], rel=0.02), stage


def test_twice_the_steps_take_twice_the_time_of_training(tmp_path):
    make_measured_run(tmp_path / "own", OWN)
    training = OWN.training.model_copy(update={"steps": 40})
    longer = OWN.model_copy(update={"training": training})
    runs = earlier_runs(tmp_path)
    before, after = (planned(one, runs).needs.seconds["train"] for one in (OWN, longer))
    assert after == pytest.approx(2 * before, rel=0.1)


def test_smaller_micro_batches_take_less_memory():
    # 64 long episodes in one update, so that the bound on a micro-batch counts
    long = {"max_tokens": 2048, "max_turn_tokens": 256}
    sections = OWN.model_dump(mode="json") | {"episode": long}
    made = Profile.model_validate(sections)
    plan = planned(made)
    asked = plan.needs.peak_mib - 50
    fault = planned(made, memory_mib=asked).faults[0]
    assert fault.what == "memory"
    assert fault.remedies[0].flags.startswith("--set hardware.micro_batch_tokens=")
    assert fault.remedies[0].needs <= asked


def test_every_limit_has_its_fault():
    made = planned(memory_mib=10.0, disk_mib=1.0, hours=0.0001)
    assert [fault.what for fault in made.faults] == ["memory", "disk", "hours"]
    text = plan_text(made)
    assert "does not fit: memory" in text
    assert "no key of the profile makes it fit" in text


def test_amounts_that_do_not_fit_have_units():
    prices = PriceTable(currency="USD", machine_hour=1.0)
    limits = Limits(memory_mib=1000.0, hours=0.00012, money=0.00034)
    order = PlanOrder(profile=OWN, runs=NO_RUNS, machine=MACHINE, limits=limits, prices=prices)
    faults = [line for line in plan_text(make_plan(order)).splitlines() if "does not fit" in line]
    limits_shown = [line.partition(" of ")[2] for line in faults]
    assert limits_shown == ["1,000 MiB", "0.00012 hours", "0.00034 USD"]


def test_memory_given_for_a_gpu_is_planned_for():
    plan = planned(accelerator_mib=10.0)
    assert plan.needs.accelerators == 1
    assert [fault.what for fault in plan.faults] == ["accelerator memory"]
    assert planned().needs.accelerators == 0


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


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/tmp"])
def test_a_probe_replaces_only_folders_among_the_probes(tmp_path, name):
    kept = tmp_path / "runs" / "kept"
    kept.mkdir(parents=True)
    profile = OWN.model_copy(update={"name": name})
    with pytest.raises(ProfileError, match="without /"):
        run_probe(profile, tmp_path / "runs", print)
    assert kept.is_dir()


def test_accelerators_are_counted_over_the_stages_that_compute():
    kubernetes = {"gpus": {"count": 2}}
    sections = OWN.model_dump(mode="json") | {"kubernetes": kubernetes}
    needs = planned(Profile.model_validate(sections)).needs
    computing = sum(taken for stage, taken in needs.seconds.items() if STAGES[stage].uses_policy)
    assert needs.accelerator_hours == pytest.approx(2 * computing / 3600)
    assert needs.accelerator_mib > 0
    assert planned().needs.accelerator_hours == 0


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


def test_what_is_assumed_is_said_in_words():
    said = [name for names in _IN_WORDS.values() for name in names]
    assert sorted(said) == sorted(field.name for field in fields(Figures))
    text = plan_text(planned())
    assert "assumed, not measured: how long episodes are, what episodes have in common" in text
    assert "GPU    none" in text


def test_a_profile_is_planned_once_where_it_fits(monkeypatch):
    sizes, plans = [], []
    read, find = plan_module.policy_size, plan_module.work_of
    monkeypatch.setattr(
        plan_module, "policy_size", lambda *given: sizes.append(given) or read(*given)
    )
    monkeypatch.setattr(plan_module, "work_of", lambda *given: plans.append(given) or find(*given))
    assert planned().faults == []
    assert (len(sizes), len(plans)) == (1, 1)


def test_the_command_prints_a_plan_and_exits_0(espalier):
    done = espalier("--profile", "smoke")
    assert done.exit_code == 0, done.output
    assert "plan of profile smoke" in done.stdout
    assert "assumed, not measured" in done.stdout
    assert "fits: memory" in done.stdout
    assert not Path("runs").exists(), "nothing is run and nothing is written"


def test_what_does_not_fit_exits_1_and_names_keys(espalier):
    done = espalier("--profile", "tiny", "--hours", "0.17")
    assert done.exit_code == 1
    assert "does not fit: time" in done.stdout
    assert "--set training.steps=" in done.stdout


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
        (["--memory", "much"], "write it as 16GiB", 1),
        (["--memory", "0GiB"], "write it as 16GiB", 1),
        (["--budget", "3"], "--prices", 2),
        (["--hours", "nan"], "above 0", 2),
        (["--profile", "labtop"], "did you mean laptop", 1),
        (["--prices", "none.toml"], "cannot be read as prices", 1),
    ],
)
def test_a_faulty_option_is_one_message(espalier, arguments, message, code):
    done = espalier(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"), [("16GiB", 16384.0), ("1.5 GiB", 1536.0), ("1GB", 1e9 / 2**20)]
)
def test_amounts_have_units(text, expected):
    assert mebibytes(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "16", "GiB", "-1GiB", "1e3GiB", "16gib", "nanGiB"])
def test_an_amount_without_a_unit_is_refused(text):
    with pytest.raises(ProfileError, match="no amount of memory"):
        mebibytes(text)
