import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from espalier.algorithms import Algorithm
from espalier.algorithms.presets import PRESETS, expand_preset
from tests.factories.loss_batches import loss_batch


def _algorithm(**settings):
    return Algorithm.model_validate(settings)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_parses_and_survives_its_json(preset):
    algorithm = _algorithm(preset=preset)
    assert algorithm.preset == preset
    again = Algorithm.model_validate_json(algorithm.model_dump_json())
    assert again == algorithm
    assert again.model_dump_json() == algorithm.model_dump_json()


def test_parsing_an_algorithm_loads_no_torch():
    code = (
        "import sys; from espalier.algorithms import Algorithm; "
        "Algorithm.model_validate({'preset': 'vapo'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_table_changes_replaces_or_leaves_out_a_presets_rule():
    loss = _algorithm(preset="dapo", loss={"clip_high": 0.4}).loss
    assert (loss.name, loss.clip_low, loss.clip_high) == ("ppo_clip", 0.2, 0.4)
    same_name = _algorithm(preset="dr_grpo", loss={"name": "ppo_clip", "clip_low": 0.1})
    assert (same_name.loss.clip_low, same_name.loss.clip_high) == (0.1, 0.2)
    assert same_name.aggregation == "constant"
    another = _algorithm(preset="dr_grpo", loss={"name": "gmpo"})
    assert (another.loss.name, another.aggregation) == ("gmpo", None), "it went with its loss"
    assert _algorithm(preset="grpo").kl is not None
    assert _algorithm(preset="grpo", kl="none").kl is None


WEIGHTS = [{"name": "importance_weights"}]
GATE = [{"name": "advantage_gate"}]
REFUSED = (
    ({"preset": "dpao"}, "dpo or dapo"), ({"preset": "drgrpo"}, "dr_grpo or grpo"),
    ({"preset": "zzz"}, "bnpo, cispo"), ({"advantage": {"name": "gae"}}, "critic"),
    ({"critic": {}}, "grpo"), ({"preset": "rft", "critic": {}}, "material"),
    ({"advantage": "none"}, "advantage"), ({"loss": {"name": "dpo"}}, "everything"),
    ({"preset": "dpo", "advantage": {"name": "grpo"}}, "advantage"),
    ({"preset": "dpo", "loss": {"name": "gspo"}}, "gspo"),
    ({"preset": "rft", "loss": {"name": "ppo_clip"}}, "imitated"),
    ({"preset": "gmpo", "aggregation": "token_mean"}, "mean"),
    ({"preset": "rft", "kl": {"place": "reward"}}, "advantages"),
    ({"preset": "opo", "kl": {"importance_corrected": True}}, "importance"),
    ({"preset": "rloo", "kl": {"importance_corrected": True}}, "importance"),
    ({"off_policy": WEIGHTS}, "proximal"), ({"preset": "vespo", "off_policy": WEIGHTS}, "twice"),
    ({"preset": "v_trace", "proximal": "behavior"}, "sampler"),
    ({"preset": "v_trace", "off_policy": WEIGHTS}, "twice"),
    ({"preset": "ppo", "filters": GATE}, "scored"), ({"preset": "rft", "filters": GATE}, "scored"),
    ({"loss": {"dual_clip": 1.1}}, "clip"),
)  # fmt: skip


@pytest.mark.parametrize(("settings", "reason"), REFUSED)
def test_what_cannot_work_together_is_refused_with_the_reason(settings, reason):
    with pytest.raises(ValidationError, match=reason):
        _algorithm(**settings)


def test_weights_need_a_recomputed_denominator_or_no_ratio():
    assert _algorithm(proximal="recomputed", off_policy=WEIGHTS).scores_before_update
    assert _algorithm(preset="opo", off_policy=WEIGHTS).scores_before_update


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
    policy = torch.linspace(-5, -1, 12, dtype=torch.float64).view(2, 6)
    ones, entropy = torch.ones_like(policy), torch.full_like(policy, 2.0)
    batch = loss_batch(
        policy, policy, ones, ones.bool(), entropy_BT=entropy, reference_logprobs_BT=policy - 0.1
    )
    plain = _algorithm(kl="none").objective(batch, kl_coefficient=0.0)
    kl = {"estimator": "k1", "coefficient": 0.5}
    whole = _algorithm(kl=kl, entropy_coefficient=0.25).objective(batch, kl_coefficient=0.5)
    # policy less reference is 0.1 nats everywhere, the entropy 2
    assert float(whole.loss - plain.loss) == pytest.approx(0.5 * 0.1 - 0.25 * 2)
    assert float(whole.metrics["kl"]) == pytest.approx(0.1)
    in_reward = _algorithm(kl={"place": "reward", **kl}).objective(batch, kl_coefficient=0.5)
    assert float(in_reward.loss) == float(plain.loss)


def test_expansion_does_not_change_the_presets():
    before = repr(PRESETS)
    expand_preset({"preset": "dapo", "loss": {"clip_low": 0.9}, "kl": {"coefficient": 1.0}})
    assert repr(PRESETS) == before
