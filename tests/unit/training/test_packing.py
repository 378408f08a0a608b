import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training.packing import TrainingSequence, convolution_reach, pack, plan_rows
from espalier.training.scoring import score
from tests.factories.tiny import tiny_policy


def _sequences(count, rng):
    made = []
    for _ in range(count):
        length = rng.randrange(4, 20)
        mask = [0] + [rng.randrange(2) for _ in range(length - 1)]
        made.append(
            TrainingSequence(
                token_ids=tuple(rng.randrange(20, 300) for _ in range(length)),
                loss_mask=tuple(mask),
            )
        )
    return made


@pytest.mark.parametrize("row_tokens", [20, 64, 200])
def test_packed_logprobs_equal_those_of_each_sequence_alone(row_tokens):
    model = tiny_policy().model
    sequences = _sequences(9, random.Random(0))
    gap = convolution_reach(model)
    packed = pack(sequences, row_tokens=row_tokens, gap=gap)
    with torch.no_grad():
        together = score(model, packed).logprobs_N
    for index, sequence in enumerate(sequences):
        if not any(sequence.loss_mask):
            continue
        with torch.no_grad():
            alone = score(model, pack([sequence], row_tokens=row_tokens, gap=gap)).logprobs_N
        torch.testing.assert_close(
            together[packed.sequence_N == index], alone, rtol=1e-5, atol=1e-5
        )


def test_without_the_gap_a_convolution_reads_over_the_border():
    model = tiny_policy().model
    sequences = _sequences(2, random.Random(1))
    with torch.no_grad():
        right = score(model, pack(sequences, row_tokens=64, gap=2)).logprobs_N
        wrong = score(model, pack(sequences, row_tokens=64, gap=0)).logprobs_N
    assert not torch.allclose(right, wrong, atol=1e-4)


def test_tokens_seen_only_by_masked_positions_get_no_gradient():
    model = tiny_policy().model
    ids = torch.randint(20, 300, (1, 12))
    sequence = TrainingSequence(
        token_ids=tuple(ids[0].tolist()), loss_mask=(0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0)
    )
    embedded = model.get_input_embeddings()
    seen = []

    def keep_gradient(_module, _inputs, output):
        output.retain_grad()
        seen.append(output)

    handle = embedded.register_forward_hook(keep_gradient)
    score(model, pack([sequence], row_tokens=32, gap=2)).logprobs_N.sum().backward()
    handle.remove()
    gradient_T = seen[0].grad[0].abs().sum(dim=1)
    # tokens 4.. are read only by positions that predict nothing that is scored
    assert torch.equal(gradient_T[4:12], torch.zeros(8))
    assert (gradient_T[:4] > 0).all()


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    row_tokens=st.integers(20, 80),
    gap=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_sequence_is_placed_once_and_rows_are_not_overfilled(lengths, row_tokens, gap):
    rows = plan_rows(lengths, row_tokens=row_tokens, gap=gap)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        used = sum(lengths[index] + gap for index in row) - gap
        assert used <= row_tokens or len(row) == 1
