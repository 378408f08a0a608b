import pytest

from espalier.config import Profile
from espalier.planning.fitting import find_fault


def profile(**sections):
    return Profile.model_validate(sections)


def micro(one):
    return float(one.hardware.micro_batch_tokens)


def test_what_fits_is_no_fault():
    assert find_fault("memory", profile(), micro, 8192.0) is None
    assert find_fault("memory", profile(), micro, None) is None


def test_the_mildest_value_that_fits_is_named():
    fault = find_fault("memory", profile(), micro, 3000.0)
    assert fault is not None
    (remedy,) = fault.remedies
    assert remedy.flags == "--set hardware.micro_batch_tokens=2048"
    assert remedy.needs == 2048.0


def test_every_key_that_helps_by_itself_is_named():
    def needs(one):
        saved = 50.0 if one.hardware.activation_checkpointing else 0.0
        return 100.0 + one.rollout.max_rows / 256 * 100 - saved

    fault = find_fault("memory", profile(), needs, 160.0)
    assert fault is not None
    assert [remedy.flags for remedy in fault.remedies] == [
        "--set rollout.max_rows=128",
        "--set hardware.activation_checkpointing=true",
    ]


def test_keys_are_put_together_where_none_is_enough():
    def needs(one):
        return micro(one) + one.rollout.max_rows

    fault = find_fault("memory", profile(), needs, 600.0)
    assert fault is not None
    (remedy,) = fault.remedies
    assert [key for key, _ in remedy.settings] == [
        "hardware.micro_batch_tokens",
        "rollout.max_rows",
    ]
    assert remedy.needs <= 600.0


def test_what_no_key_mends_has_no_remedy():
    fault = find_fault("memory", profile(), lambda one: 500.0, 300.0)
    assert fault is not None
    assert fault.remedies == ()


def test_a_micro_batch_still_holds_an_episode():
    long = profile(episode={"max_tokens": 4096})
    fault = find_fault("memory", long, micro, 3000.0)
    assert fault is not None
    assert fault.remedies == (), "the next half is shorter than an episode"


def test_a_value_that_the_profile_refuses_is_passed_over():
    warmup = 16
    algorithm = {"preset": "ppo", "critic": {"warmup_steps": warmup}}
    asked = profile(training={"steps": 100, "algorithm": algorithm})

    def needs(one):
        return float(one.training.steps)

    fault = find_fault("hours", asked, needs, float(warmup))
    assert fault is not None
    for remedy in fault.remedies:
        assert dict(remedy.settings)["training.steps"] > warmup


@pytest.mark.parametrize("what", ["hours", "money"])
def test_fewer_steps_take_less_time(what):
    fault = find_fault(
        what, profile(training={"steps": 100}), lambda one: float(one.training.steps), 55.0
    )
    assert fault is not None
    assert [remedy.flags for remedy in fault.remedies] == ["--set training.steps=50"]
