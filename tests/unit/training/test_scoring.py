import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training import scoring
from espalier.training.packing import pack
from espalier.training.rl.rows import dense_rows
from espalier.training.scoring import ScoreRequest, support_mask, token_scores
from tests.factories.training_episodes import exact_policy, mixed_groups

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("request_", "target", "expected"),
    [
        ({}, 1, 0.3),
        ({"temperature": 0.5}, 0, 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025)),
        ({"top_k": 2}, 1, 0.3 / 0.8),
        ({"top_p": 0.79}, 0, 0.5 / 0.8),
        ({"top_p": 0.81}, 0, 0.5 / 0.95),
        ({"top_k": 3, "top_p": 0.5}, 0, 1.0),
        ({"top_k": 2}, 3, 0.05 / 0.85),  # sampled under former weights: it counts as inside
        ({"top_k": 9}, 3, 0.05),
    ],
)
def test_log_probs_are_of_the_distribution_sampled_from(request_, target, expected):
    found = token_scores(LOGITS, torch.tensor([target]), ScoreRequest(**request_)).logprobs_N
    assert float(found) == pytest.approx(math.log(expected))


@given(top_p=st.floats(0.05, 1.0), top_k=st.integers(0, 12), temperature=st.floats(0.2, 3.0))
@settings(max_examples=60, deadline=None)
def test_probabilities_of_the_support_sum_to_one(top_p, top_k, temperature):
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    request = ScoreRequest(temperature=temperature, top_p=top_p, top_k=top_k)
    inside = support_mask(logits / temperature, top_p=top_p, top_k=top_k)
    assert inside.any(dim=1).all()
    for row in range(3):
        total = sum(
            float(token_scores(logits[[row]], torch.tensor([v]), request).logprobs_N.exp())
            for v in range(10)
            if inside[row, v]
        )
        assert total == pytest.approx(1.0)


def test_entropy_of_a_truncated_distribution_has_a_finite_gradient():
    logits = LOGITS.clone().requires_grad_()
    request = ScoreRequest(top_k=2, entropy=True, entropy_gradient=True)
    scores = token_scores(logits, torch.tensor([0]), request)
    parts = torch.tensor([0.5 / 0.8, 0.3 / 0.8], dtype=torch.float64)
    torch.testing.assert_close(scores.entropy_N, -(parts * parts.log()).sum()[None])
    scores.entropy_N.sum().backward()
    assert logits.grad.isfinite().all()
    assert torch.equal(logits.grad[0, 2:], torch.zeros(2, dtype=torch.float64))


def test_figures_that_are_only_shown_have_no_gradient():
    request = ScoreRequest(entropy=True, sum_pi_squared=True)
    scores = token_scores(LOGITS.clone().requires_grad_(), torch.tensor([0]), request)
    assert not scores.entropy_N.requires_grad
    assert scores.logprobs_N.requires_grad
    assert float(scores.sum_pi_squared_N) == pytest.approx(0.25 + 0.09 + 0.0225 + 0.0025)


@pytest.mark.parametrize(
    "request_",
    [
        ScoreRequest(entropy=True, entropy_gradient=True),
        ScoreRequest(temperature=0.7, entropy=True, sum_pi_squared=True),
        ScoreRequest(top_k=5, top_p=0.8, entropy=True, entropy_gradient=True),
    ],
)
def test_logits_in_pieces_give_the_same_scores_and_gradient(monkeypatch, request_):
    policy = exact_policy()
    rows = dense_rows(mixed_groups(), with_observations=False)
    batch = pack(rows.sequences, row_tokens=64, gap=2)

    def scored():
        policy.zero_grad(set_to_none=True)
        scores = scoring.score(policy, batch, request_)
        weighted = scores.logprobs_N * torch.linspace(-1, 1, len(scores.logprobs_N))
        if request_.entropy_gradient:
            weighted = weighted + scores.entropy_N
        weighted.sum().backward()
        return scores, {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}

    whole, gradients = scored()
    vocabulary = policy.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 5 * vocabulary)
    parts, in_pieces = scored()
    for found, expected in zip(parts, whole, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected)
            assert found.requires_grad == expected.requires_grad
    assert in_pieces.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(in_pieces[name], gradient, msg=name)
