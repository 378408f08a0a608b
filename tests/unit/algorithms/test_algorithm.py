import re
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import LossBatch, Totals
from espalier.algorithms.presets import DEFAULT_PRESET, PRESETS, expand_preset


def _algorithm(**settings):
    return Algorithm.model_validate(settings)


def _batch(tokens=6, **changes):
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(2, tokens, generator=generator, dtype=torch.float64) - 3
    fields = {
        "policy_logprobs_BT": policy,
        "proximal_logprobs_BT": policy,
        "advantages_BT": torch.ones(2, tokens, dtype=torch.float64),
        "loss_mask_BT": torch.ones(2, tokens, dtype=torch.bool),
        "totals": Totals(tokens=2 * tokens, sequences=2, rows=2, max_tokens=tokens),
        "entropy_BT": torch.full((2, tokens), 2.0, dtype=torch.float64),
        "reference_logprobs_BT": policy - 0.1,
    }
    return LossBatch(**(fields | changes))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_parses_and_survives_its_json(preset):
    algorithm = _algorithm(preset=preset)
    assert algorithm.preset == preset
    again = Algorithm.model_validate_json(algorithm.model_dump_json())
    assert again == algorithm
    assert again.model_dump_json() == algorithm.model_dump_json()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_names_its_source(preset):
    source = PRESETS[preset].source
    assert preset == DEFAULT_PRESET or re.search(r"arXiv:\d{4}\.\d{5}|TRL|prime-rl", source)


def test_the_default_is_dapo_with_fewer_regenerations():
    default, dapo = Algorithm.model_validate({}), _algorithm(preset="dapo")
    changed = {"preset", "filters"}
    assert default.model_dump(exclude=changed) == dapo.model_dump(exclude=changed)
    assert (default.filters[0].regenerations, dapo.filters[0].regenerations) == (2, 10)
    assert (default.loss.clip_low, default.loss.clip_high) == (0.2, 0.28)


def test_parsing_an_algorithm_loads_no_torch():
    code = (
        "import sys; from espalier.algorithms import Algorithm; "
        "Algorithm.model_validate({'preset': 'vapo'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_table_without_a_name_changes_the_presets_rule():
    loss = _algorithm(preset="dapo", loss={"clip_high": 0.4}).loss
    assert (loss.name, loss.clip_low, loss.clip_high) == ("ppo_clip", 0.2, 0.4)


def test_a_table_with_another_name_replaces_the_presets_rule():
    algorithm = _algorithm(preset="dr_grpo", loss={"name": "gmpo"})
    assert algorithm.loss.name == "gmpo"
    assert algorithm.aggregation is None  # the preset's went with its loss


def test_the_same_name_keeps_the_other_settings_of_the_preset():
    algorithm = _algorithm(preset="dr_grpo", loss={"name": "ppo_clip", "clip_low": 0.1})
    assert (algorithm.loss.clip_low, algorithm.loss.clip_high) == (0.1, 0.2)
    assert algorithm.aggregation == "constant"


def test_a_part_can_be_left_out():
    assert _algorithm(preset="grpo").kl is not None
    assert _algorithm(preset="grpo", kl="none").kl is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"preset": "dpao"}, "dpo or dapo"),
        ({"preset": "drgrpo"}, "dr_grpo or grpo"),
        ({"preset": "zzz"}, "bnpo, cispo"),
        ({"advantage": {"name": "gae"}}, "critic"),
        ({"critic": {}}, "grpo"),
        ({"preset": "rft", "critic": {}}, "material"),
        ({"advantage": "none"}, "advantage"),
        ({"preset": "dpo", "advantage": {"name": "grpo"}}, "advantage"),
        ({"loss": {"name": "dpo"}}, "everything"),
        ({"preset": "dpo", "loss": {"name": "gspo"}}, "gspo"),
        ({"preset": "rft", "loss": {"name": "ppo_clip"}}, "imitated"),
        ({"preset": "gmpo", "aggregation": "token_mean"}, "mean"),
        ({"preset": "rft", "kl": {"place": "reward"}}, "advantages"),
        ({"preset": "opo", "kl": {"importance_corrected": True}}, "importance"),
        (
            {"preset": "rloo", "kl": {"importance_corrected": True}},
            "kl.importance_corrected",
        ),
        ({"off_policy": [{"name": "importance_weights"}]}, "proximal"),
        ({"preset": "vespo", "off_policy": [{"name": "importance_weights"}]}, "twice"),
        ({"preset": "v_trace", "proximal": "behavior"}, "sampler"),
        ({"preset": "v_trace", "off_policy": [{"name": "importance_weights"}]}, "twice"),
        ({"preset": "ppo", "filters": [{"name": "advantage_gate"}]}, "scored"),
        ({"preset": "rft", "filters": [{"name": "advantage_gate"}]}, "scored"),
        ({"loss": {"dual_clip": 1.1}}, "clip"),
    ],
)
def test_what_cannot_work_together_is_refused_with_the_reason(settings, reason):
    with pytest.raises(ValidationError, match=reason):
        _algorithm(**settings)


def test_weights_need_a_recomputed_denominator_or_no_ratio():
    rule = [{"name": "importance_weights"}]
    assert _algorithm(proximal="recomputed", off_policy=rule).scores_before_update
    assert _algorithm(preset="opo", off_policy=rule).scores_before_update


def test_an_algorithm_knows_what_it_needs():
    assert not _algorithm().scores_before_update
    assert not _algorithm().needs_reference
    assert _algorithm(preset="grpo").needs_reference
    assert _algorithm(preset="dpo").needs_reference
    assert _algorithm(preset="otb").scores_before_update
    assert "values_BT" in _algorithm(preset="ppo").needs
    assert _algorithm(preset="rloo").compares_groups
    assert not _algorithm(preset="ppo").compares_groups
    assert not _algorithm(preset="reinforce_pp").compares_groups


def test_the_objective_is_the_loss_with_penalty_and_bonus():
    batch = _batch()
    plain = _algorithm(kl="none").objective(batch, kl_coefficient=0.0)
    kl = {"estimator": "k1", "coefficient": 0.5}
    whole = _algorithm(kl=kl, entropy_coefficient=0.25).objective(batch, kl_coefficient=0.5)
    # policy less reference is 0.1 nats everywhere, the entropy 2
    assert float(whole.loss - plain.loss) == pytest.approx(0.5 * 0.1 - 0.25 * 2)
    assert float(whole.metrics["kl"]) == pytest.approx(0.1)
    assert float(plain.metrics["entropy"]) == pytest.approx(2.0)


def test_a_penalty_in_the_reward_stays_out_of_the_objective():
    kl = {"place": "reward", "estimator": "k1", "coefficient": 0.5}
    batch = _batch()
    with_kl = _algorithm(kl=kl).objective(batch, kl_coefficient=0.5)
    assert float(with_kl.loss) == float(_algorithm().objective(batch, kl_coefficient=0.0).loss)


def test_expansion_does_not_change_the_presets():
    before = repr(PRESETS)
    expand_preset({"preset": "dapo", "loss": {"clip_low": 0.9}, "kl": {"coefficient": 1.0}})
    assert repr(PRESETS) == before
