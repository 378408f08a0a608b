import math

import pytest

from espalier.rollout.engines.engine import KindChoice
from espalier.training.rl.assessment import StepContext, engine_mismatch
from espalier.training.rl.rows import dense_rows
from espalier.training.scoring import ScoreRequest
from tests.factories.training_episodes import mixed_groups


def _rows():
    return dense_rows(mixed_groups(), with_observations=False)


def _found(rows, trainer_BT, *, scored=None, version=0, kind_choice=None, top_k=0):
    step = StepContext(version, ScoreRequest(top_k=top_k), kind_choice)
    return engine_mismatch(
        rows, trainer_BT, scored=range(len(rows)) if scored is None else scored, step=step
    )


def test_equal_log_probs_have_no_gap():
    rows = _rows()
    assert set(_found(rows, rows.behavior_logprobs_BT).values()) == {0.0}


def test_the_gap_is_in_nats_over_action_tokens():
    rows = _rows()
    trainer_BT = (rows.behavior_logprobs_BT + 0.1).where(rows.action_mask_BT, -99.0)
    found = _found(rows, trainer_BT)
    assert found["logprob_gap_max"] == pytest.approx(0.1, abs=1e-6)
    # k3 of sampler to trainer: exp(d) - d - 1 with d = trainer - sampler
    assert found["mismatch_kl"] == pytest.approx(math.exp(0.1) - 1.1, rel=1e-4)


def test_rows_that_were_not_scored_in_time_do_not_count():
    rows = _rows()
    trainer_BT = rows.behavior_logprobs_BT.clone()
    trainer_BT[0] += 1.0
    assert _found(rows, trainer_BT, scored=range(1, len(rows)))["mismatch_kl"] == 0
    assert _found(rows, trainer_BT, version=3) == {}


def test_action_kinds_are_compared_under_their_sampling_mixture():
    rows = _rows()
    row = 0
    first = int(rows.action_mask_BT[row].nonzero()[0])
    after_id, kind_id = rows.sequences[row].token_ids[first : first + 2]
    choice = KindChoice(epsilon=0.3, after_id=after_id, kind_ids=(kind_id, 9999))
    policy_BT = rows.behavior_logprobs_BT.clone()
    drawn = 0.7 * math.exp(float(policy_BT[row, first + 1])) + 0.3 / 2
    rows.behavior_logprobs_BT[row, first + 1] = math.log(drawn)
    assert _found(rows, policy_BT, kind_choice=choice)["logprob_gap_max"] < 1e-6
    assert _found(rows, policy_BT)["logprob_gap_max"] > 0.01


def test_a_kind_drawn_beside_a_truncated_distribution_is_not_compared():
    rows = _rows()
    first = int(rows.action_mask_BT[0].nonzero()[0])
    after_id, kind_id = rows.sequences[0].token_ids[first : first + 2]
    choice = KindChoice(epsilon=0.3, after_id=after_id, kind_ids=(kind_id,))
    policy_BT = rows.behavior_logprobs_BT.clone()
    policy_BT[0, first + 1] += 3.0
    assert _found(rows, policy_BT, kind_choice=choice, top_k=5)["logprob_gap_max"] == 0
