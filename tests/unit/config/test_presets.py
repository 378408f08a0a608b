"""Presets as shipped: what they set outside of [training.algorithm], and where it holds."""

import re
from pathlib import Path

import pytest

from espalier.algorithms.presets import DEFAULT_PRESET, PRESETS
from espalier.config import Profile
from espalier.config.profile import override_tables
from espalier.steps.profiles import named_profile, profile_names

ROOT = Path(__file__).parents[3]
ELSEWHERE = [name for name, preset in PRESETS.items() if preset.elsewhere]
REQUIRED = {
    *("ppo", "turn_ppo", "vapo", "starpo_s", "reft", "v_trace"),
    *("grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "turn_credit"),
    *("dapo", "gspo", "cispo", "sapo", "dpo", "rft", "spo"),
}
"""Systems whose exact setting users choose by name."""
GOLDEN_NAMES = {"maxrl": "prime_rl_maxrl", "grpo_pass_k": "verl_grpo_passk", "ipo": "prime_rl_ipo"}
"""Presets whose golden cases spell them otherwise."""


def with_preset(name, **sections):
    training = {**sections.pop("training", {}), "algorithm": {"preset": name}}
    return Profile.model_validate({**sections, "training": training})


def value_at(tables, key):
    for part in key.split("."):
        tables = tables[part]
    return tables


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads_in_every_profile(preset):
    for profile in profile_names():
        named_profile(profile, [f"training.algorithm.preset={preset}"])


@pytest.mark.parametrize("preset", ELSEWHERE)
def test_what_a_preset_sets_elsewhere_holds_unless_stated(preset):
    defaults = Profile().model_dump(mode="json")
    tables = {"training": {"algorithm": {"preset": preset}}}
    for key in PRESETS[preset].elsewhere:
        override_tables(tables, [(key, value_at(defaults, key))])
    filled, stated = with_preset(preset), Profile.model_validate(tables)
    for key, value in PRESETS[preset].elsewhere.items():
        held = value_at(filled.model_dump(mode="json"), key)
        assert held == value or key == "reward.terms"
        assert value_at(stated.model_dump(mode="json"), key) == value_at(defaults, key)
    for profile in (stated, filled):
        assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_starpo_s_has_the_setting_of_its_paper():
    profile = with_preset("starpo_s")
    training, algorithm = profile.training, profile.training.algorithm
    assert (training.tasks_per_step, training.group_size) == (8, 16)
    assert (algorithm.loss.clip_low, algorithm.loss.clip_high, algorithm.kl) == (0.2, 0.28, None)
    assert (algorithm.entropy_coefficient, algorithm.advantage.name) == (1e-3, "gae")
    assert algorithm.critic is not None
    assert (profile.episode.max_turns, profile.reward.format) == (5, 0.0)
    [term] = profile.reward.terms
    assert (term.name, term.penalty) == ("format_penalty", 0.1)


@pytest.mark.parametrize("steps", [1, 5, 40])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_short_run_trains_the_policy(preset, steps):
    algorithm = with_preset(preset, training={"steps": steps}).training.algorithm
    assert algorithm.critic is None or algorithm.critic.warmup_of(steps) < steps


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - REQUIRED - {DEFAULT_PRESET}))
def test_a_preset_has_a_golden_case(preset):
    cases = "".join(path.read_text("utf-8") for path in (ROOT / "tests/golden").glob("*.json"))
    assert re.search(rf"\"name\":\"(\w+_)?{GOLDEN_NAMES.get(preset, preset)}[_/]", cases)
