"""One contract for every decoder: what it says of a context is what plain transformers says."""

import numpy as np
import pytest
import torch

from espalier.rollout.engines.decoder import RowwiseDecoder
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.rollout.engines.lockstep import decoder_for
from espalier.rollout.engines.pages import PAGE
from tests.factories import causal_models as models
from tests.factories.causal_models import CASES
from tests.factories.checked_decoder import Checked


@pytest.fixture(params=CASES)
def checked(request):
    return Checked(request.param)


def test_rows_of_different_lengths_advance_together(checked):
    checked.advance({0: 3, 1: 5, 2: PAGE + 4, 3: 1})
    for _ in range(4):
        checked.advance(dict.fromkeys(range(4), 1))


@pytest.mark.slow
def test_a_context_grows_over_the_border_of_a_page(checked):
    checked.advance({0: PAGE - 1, 1: PAGE})
    for _ in range(3):
        checked.advance({0: 1, 1: 1})
    checked.advance({0: 2 * PAGE - 8, 1: 1})


def test_a_released_slot_begins_empty(checked):
    checked.advance({0: 10, 1: 3, 2: 40})
    checked.release(2)
    checked.release(0)
    checked.advance({0: 1, 1: 1})
    checked.advance({0: 7, 1: 1, 2: 5})


@pytest.mark.parametrize("name", CASES)
def test_tokens_that_are_taken_back_leave_no_trace(name):
    checked = Checked(name)
    assert checked.rewinds == (name not in {"mistral by its window", "lfm2 row by row"})
    if checked.rewinds:
        checked.walk_back()


@pytest.mark.slow
def test_any_order_of_reading_sampling_forking_and_leaving_is_exact(checked):
    checked.walk(steps=25)


def test_a_model_in_training_mode_is_decoded_without_dropout():
    model = models.gpt2()
    model.train()
    assert isinstance(decoder_for(model), HfDecoder)
    assert model.training
    model.eval()


FASTEST = {
    FusedDecoder: (
        models.embedded,
        models.lfm2_with_shared_heads_and_biases,
        models.qwen3,
        models.qwen2,
        models.llama,
    ),
    HfDecoder: (models.gpt2, models.gelu_llama),
    RowwiseDecoder: (models.mistral_with_a_window, models.gemma2_with_capped_logits, models.mamba),
}


@pytest.mark.parametrize(("decoder_class", "builds"), FASTEST.items())
def test_a_model_gets_the_fastest_exact_decoder(decoder_class, builds):
    for build in builds:
        assert isinstance(decoder_for(build()), decoder_class)


@pytest.mark.parametrize("decoder_class", [FusedDecoder, HfDecoder, RowwiseDecoder])
def test_weights_that_were_changed_in_place_are_those_that_decode(decoder_class):
    model = models.llama.__wrapped__()
    decoder = decoder_class(model)
    ids = np.arange(20, 25)
    decoder.begin()
    before = decoder.logits(decoder.advance(np.array([0]), np.array([5]), ids))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    decoder.begin()
    after = decoder.logits(decoder.advance(np.array([0]), np.array([5]), ids))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0, -1:]
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)
