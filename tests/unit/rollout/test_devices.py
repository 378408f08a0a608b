"""Decoders and draws stay on the device of the weights, on machines without a GPU, too.

Fake tensors know their device and shape and hold no numbers: an operation on tensors of two devices
is an error. That the numbers are right on a GPU is for tests/gpu, and so is bfloat16: torch without
CUDA crashes in autocast for it.
"""

import copy

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from espalier.rollout.engines import drawing
from espalier.rollout.engines.drawing import draw
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from tests.factories import causal_models as models
from tests.unit.rollout.test_drawing import _rows


def move_to_fake_gpu(model, mode):
    """Make the weights fake tensors on a GPU."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = mode.from_tensor(weight.detach()).to("cuda")
            module._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = mode.from_tensor(buffer).to("cuda")


@pytest.mark.parametrize(
    ("decoder_class", "build"),
    [
        (FusedDecoder, models.embedded),
        (FusedDecoder, models.llama),
        (HfDecoder, models.gelu_llama),
    ],
)
def test_a_decoder_stays_on_the_device_of_its_weights(decoder_class, build):
    model = copy.deepcopy(build())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        move_to_fake_gpu(model, mode)
        decoder = decoder_class(model)
        decoder.begin()
        decoder.advance(np.array([0, 1, 2]), np.array([1, 5, 40]), np.arange(46) + 20)
        decoder.fork(2, [4, 5])
        asked = np.array([1, 3])
        hidden = decoder.advance(np.array([0, 2]), asked, np.arange(4) + 20, asked)
        decoder.rewind(np.array([2]), np.array([2]))
        logits = decoder.logits(hidden)
        decoder.release(2)
        decoder.release(0)
        decoder.advance(np.array([4, 5]), np.array([1, 1]), np.arange(2) + 20)
        decoder.end()
    assert logits.device.type == "cuda"
    assert logits.dtype == torch.float32
    assert logits.shape == (4, model.config.vocab_size)


@pytest.mark.parametrize(
    "way", [{}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}]
)
def test_tokens_are_drawn_on_the_device_of_the_logits(way, monkeypatch):
    found = []
    monkeypatch.setattr(drawing, "_on_host", lambda *drawn: found.extend(drawn))
    with FakeTensorMode(allow_non_fake_inputs=True):
        draw(torch.empty(9, 128, device="cuda"), _rows(9, **way))
    assert [one.device.type for one in found] == ["cuda", "cuda"]
    assert [one.shape for one in found] == [(9,), (9,)]
