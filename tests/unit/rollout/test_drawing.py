import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.rollout.engines.drawing import RowSampling, draw, uniforms
from espalier.rollout.engines.engine import KindChoice

DRAWS, VOCABULARY = 40_000, 96


def _rows(count, *, temperature=1.0, top_p=1.0, top_k=0, kind_choices=()):
    return RowSampling(
        temperatures_L=np.full(count, temperature, np.float32),
        top_p_L=np.full(count, top_p, np.float32),
        top_k_L=np.full(count, top_k, np.int64),
        uniforms_N=uniforms(np.full(count, 7, np.uint64), np.arange(count)),
        sources_N=np.arange(count),
        kind_choices=kind_choices,
    )


def _logits(vocabulary=VOCABULARY):
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(0))


def _expected(temperature, top_p, top_k):
    """The distribution by the definition of each parameter, one token after the other."""
    probs = (_logits().double() / temperature).softmax(0)
    order = probs.argsort(descending=True).tolist()
    kept = order[: top_k or len(order)]
    mass = sum(probs[token].item() for token in kept)
    nucleus, covered = [], 0.0
    for token in kept:
        if covered >= top_p:
            break
        nucleus.append(token)
        covered += probs[token].item() / mass
    cut = torch.zeros_like(probs)
    cut[nucleus] = probs[nucleus]
    return (cut / cut.sum()).numpy()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.0, 0.7, 0), (1.0, 1.0, 9), (1.5, 0.9, 20)],
)
def test_token_frequencies_and_logprobs_match_the_distribution(temperature, top_p, top_k):
    rows = _rows(DRAWS, temperature=temperature, top_p=top_p, top_k=top_k)
    drawn = draw(_logits().expand(DRAWS, -1).clone(), rows)
    expected = _expected(temperature, top_p, top_k)
    shares = np.bincount(drawn.token_ids_N, minlength=VOCABULARY) / DRAWS
    assert abs(shares - expected).max() < 0.01
    assert (shares[expected == 0] == 0).all()
    np.testing.assert_allclose(np.exp(drawn.logprobs_N), expected[drawn.token_ids_N], rtol=1e-4)


def test_action_kinds_come_from_the_exploration_mixture():
    choice = KindChoice(epsilon=0.4, after_id=0, kind_ids=(3, 5))
    rows = _rows(DRAWS, kind_choices=((choice, np.arange(DRAWS)),))
    drawn = draw(_logits().expand(DRAWS, -1).clone(), rows)
    expected = 0.6 * _expected(1.0, 1.0, 0)
    expected[[3, 5]] += 0.2
    shares = np.bincount(drawn.token_ids_N, minlength=VOCABULARY) / DRAWS
    assert abs(shares - expected).max() < 0.01
    np.testing.assert_allclose(np.exp(drawn.logprobs_N), expected[drawn.token_ids_N], rtol=1e-4)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2**20))
def test_no_uniform_number_draws_a_token_without_probability(uniform, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, VOCABULARY, generator=generator) * 30
    logits[torch.rand(1, VOCABULARY, generator=generator) < 0.5] = -torch.inf
    logits[0, 0] = 0.0
    drawn = draw(logits.clone(), _rows(1)._replace(uniforms_N=np.array([uniform])))
    assert logits[0, drawn.token_ids_N[0]] > -torch.inf
    assert np.isfinite(drawn.logprobs_N).all()


def test_a_draw_is_that_of_splitmix64():
    # the first two outputs of the reference generator for the state 1234567
    reference = (6457827717110365317, 3203168211198807973)
    numbers = uniforms(np.full(2, 1234567, np.uint64), np.arange(2))
    assert tuple(numbers) == tuple((word >> 11) * 2.0**-53 for word in reference)
