import json
from dataclasses import fields
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
    PriceTable,
    make_plan,
    mebibytes,
    plan_text,
    read_probe,
    run_probe,
)
from espalier.planning.figures import Figures
from espalier.planning.machine import Machine
from espalier.planning.probe import PROBE_STEPS, probe_profile
from espalier.planning.probe_figures import probe_figures
from espalier.planning.showing import _IN_WORDS
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
    order = PlanOrder(
        profile=profile, measured=measured or {}, machine=machine, limits=Limits(**limits)
    )
    return make_plan(order)


def shorter(steps):
    return OWN.model_copy(update={"training": OWN.training.model_copy(update={"steps": steps})})


@pytest.fixture
def espalier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(command_line(), ["plan", *arguments])


def test_a_probe_planned_from_itself_is_what_it_was(tmp_path):
    probe = shorter(2)
    needs = planned(probe, probe_figures(probe, make_measured_run(tmp_path / "own", probe))).needs
    assert needs.peak_mib == pytest.approx(PEAKS_MIB["train"], rel=0.05)
    for stage in ("ingest", "synthesize", "validate", "prepare_policy"):
        assert needs.seconds[stage] == pytest.approx(SECONDS[stage], rel=0.02), stage


def test_twice_the_steps_take_twice_the_time_of_training(tmp_path):
    measured = probe_figures(shorter(2), make_measured_run(tmp_path / "own", shorter(2)))
    before, after = (planned(shorter(n), measured).needs.seconds["train"] for n in (20, 40))
    assert after == pytest.approx(2 * before, rel=0.1)


def test_smaller_micro_batches_take_less_memory():
    # 64 long episodes in one update, so that the bound on a micro-batch counts
    long = {"episode": {"max_tokens": 2048, "max_turn_tokens": 256}}
    whole, half = (
        planned(
            Profile.model_validate(
                OWN.model_dump(mode="json") | long | {"hardware": {"micro_batch_tokens": tokens}}
            )
        ).needs.peak_mib
        for tokens in (8192, 4096)
    )
    assert half < whole - 50


def test_every_limit_has_its_fault():
    made = planned(memory_mib=10.0, disk_mib=1.0, hours=0.0001)
    assert [fault.what for fault in made.faults] == ["memory", "disk", "hours"]
    text = plan_text(made)
    assert "does not fit: memory" in text
    assert "it depends most on hardware.micro_batch_tokens, rollout.max_rows" in text


def test_amounts_that_do_not_fit_have_units():
    prices = PriceTable(currency="USD", machine_hour=1.0)
    limits = Limits(memory_mib=1000.0, hours=0.00012, money=0.00034)
    order = PlanOrder(profile=OWN, machine=MACHINE, limits=limits, prices=prices)
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
    text = plan_text(planned(longer, measured))
    assert "estimated, not measured: how many groups are drawn anew" in text
    assert "--probe measures" not in text


def test_another_environment_takes_speed_and_no_lengths(probed):
    shop = Profile.model_validate(OWN.model_dump(mode="json") | {"environment": {"name": "shop"}})
    own, other = (read_probe(one, MACHINE, probed) for one in (OWN, shop))
    assert "episode_tokens" not in other
    assert other["update_token_s"] == own["update_token_s"]


@pytest.mark.parametrize("changed", [{"threads": 2}, {"policy": {"hidden_size": 64}}])
def test_another_model_or_thread_count_was_not_probed(probed, changed):
    other = Profile.model_validate(OWN.model_dump(mode="json") | changed)
    assert read_probe(other, MACHINE, probed) == {}


def test_a_damaged_probe_is_one_message(probed):
    (kept,) = probed.rglob("*.json")
    kept.write_text("{")
    with pytest.raises(ArtifactError, match="--probe measures again"):
        read_probe(OWN, MACHINE, probed)


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
    assert "estimated, not measured: how long episodes are, what episodes have in common" in text
    assert "GPU    none" in text


def test_the_command_prints_a_plan_and_exits_0(espalier):
    done = espalier("--profile", "smoke")
    assert done.exit_code == 0, done.output
    assert "plan of profile smoke" in done.stdout
    assert "estimated, not measured" in done.stdout
    assert "fits: memory" in done.stdout
    assert not Path("runs").exists(), "nothing is run and nothing is written"


def test_what_does_not_fit_exits_1_and_names_keys(espalier):
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
        (["--memory", "much"], "write it as 16GiB", 1),
        (["--memory", "0GiB"], "write it as 16GiB", 1),
        (["--budget", "3"], "--prices", 2),
        (["--hours", "nan"], "above 0", 2),
        (["--profile", "labtop"], "did you mean laptop", 1),
        (["--prices", "none.toml"], "not a readable price table", 1),
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
    with pytest.raises(ProfileError, match="not an amount of memory"):
        mebibytes(text)
