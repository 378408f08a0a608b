"""The engine of this process says and draws on a GPU what it says and draws on the CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from espalier.config import load_profile
from espalier.policy.embedded import build_policy
from espalier.policy.hardware import Hardware
from espalier.rollout.engines.decoder import RowwiseDecoder
from espalier.rollout.engines.engine import KindChoice
from espalier.rollout.engines.fused_decoder import FusedDecoder
from espalier.rollout.engines.hf_decoder import HfDecoder
from espalier.rollout.engines.lockstep import LockstepEngine, decoder_for, lockstep_engine
from espalier.training.packing import TrainingSequence, pack
from espalier.training.scoring import score
from tests.factories import causal_models as models
from tests.factories.causal_models import CASES
from tests.factories.checked_decoder import Checked, placed
from tests.factories.tiny import TAGS, TOOLS, tiny_tokenizer
from tests.unit.rollout.play import NEVER, STOPS_OFTEN, run_sessions, turns

TINY = Path("pipelines/profiles/tiny.toml")
WAYS = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"top_p": 0.8},
    {"top_k": 5, "temperature": 1.3},
    {"kind_choice": KindChoice(epsilon=0.3, after_id=25, kind_ids=(22, 27))},
)
PROMPTS = [tuple(range(20, 20 + length)) for length in (5, 40, 70)]


def attempts(prompts=PROMPTS):
    """Two in each way of sampling: they share prompts and turns, and part."""
    return [
        turns(prompt, seed=seed, observations=((30, 31, 32), (40,)), max_tokens=10, **way)
        for prompt in prompts
        for way in WAYS
        for seed in range(2)
    ]


def assert_alike(found, expected):
    for (context, mask, logprobs), (context_of_cpu, mask_of_cpu, logprobs_of_cpu) in zip(
        found, expected, strict=True
    ):
        assert context == context_of_cpu
        assert mask == mask_of_cpu
        np.testing.assert_allclose(logprobs, logprobs_of_cpu, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_decoder_says_what_plain_transformers_says_on_the_cpu(name, device):
    Checked(name, device).walk(steps=12)


@pytest.mark.parametrize("name", CASES)
def test_tokens_that_are_taken_back_leave_no_trace(name, device):
    checked = Checked(name, device)
    if checked.rewinds:
        checked.walk_back()


@pytest.mark.parametrize("name", CASES)
def test_drafts_change_no_token(name, device):
    decoder_class, build = CASES[name]
    model = placed(build(), device)
    decoder = decoder_class(model)
    plain, drafting = (
        LockstepEngine(model, one, STOPS_OFTEN, max_rows=24, speculation=speculation)
        for one, speculation in ((decoder_class(model), "off"), (decoder, "all"))
    )
    for seed in range(2):
        greedy = [turns(prompt, seed=seed, temperature=0.0) for prompt in PROMPTS]
        assert_alike(run_sessions(drafting, *greedy), run_sessions(plain, *greedy))
    assert bool(drafting.counters.drafted) == decoder.rewinds


@pytest.mark.parametrize("name", CASES)
def test_the_same_tokens_are_drawn(name, device):
    decoder_class, build = CASES[name]
    moved = placed(build(), device)
    cpu = LockstepEngine(build(), decoder_class(build()), STOPS_OFTEN, max_rows=24)
    gpu = LockstepEngine(moved, decoder_class(moved), STOPS_OFTEN, max_rows=24)
    prompts = PROMPTS[:1] if decoder_class is RowwiseDecoder else PROMPTS
    assert_alike(run_sessions(gpu, *attempts(prompts)), run_sessions(cpu, *attempts(prompts)))
    assert gpu.counters == cpu.counters


def test_the_embedded_policy_of_the_demo_draws_the_same_tokens(device):
    profile = load_profile(TINY)
    model = build_policy(
        profile.policy,
        tiny_tokenizer(),
        TAGS.stop_texts(TOOLS),
        max_tokens=profile.episode.max_tokens,
        seed=0,
    )
    moved = placed(model, device)
    engines = [lockstep_engine(one, NEVER, max_rows=64) for one in (moved, model)]
    assert isinstance(decoder_for(moved), FusedDecoder)
    long = [turns(PROMPTS[0], seed=seed, max_tokens=60) for seed in range(32)]
    assert_alike(*(run_sessions(engine, *long) for engine in engines))


@pytest.mark.parametrize(
    "build", [models.qwen3, models.gpt2, models.gelu_llama, models.mistral_with_a_window]
)
def test_the_decoder_is_chosen_as_on_the_cpu(build, device):
    assert type(decoder_for(placed(build(), device))) is type(decoder_for(build()))


def test_changed_weights_are_those_that_decode(device):
    for decoder_class, autocast in ((FusedDecoder, None), (HfDecoder, torch.bfloat16)):
        model = placed(models.llama.__wrapped__(), device)
        decoder = decoder_class(model) if autocast is None else decoder_class(model, autocast)
        engine = LockstepEngine(model, decoder, NEVER, max_rows=4)
        greedy = [turns(PROMPTS[0], temperature=0.0, max_tokens=20)]
        before = run_sessions(engine, *greedy)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1.5)
        assert run_sessions(engine, *greedy) != before


@pytest.mark.parametrize("build", [models.qwen3, models.gelu_llama])
def test_in_half_precision_engine_and_trainer_agree(build, device):
    model = placed(build(), device)
    decoder = HfDecoder(model, torch.bfloat16)
    engine = LockstepEngine(model, decoder, STOPS_OFTEN, max_rows=24)
    drawing = [turns(prompt, seed=seed, max_tokens=40) for prompt in PROMPTS for seed in range(8)]
    played = run_sessions(engine, *drawing)
    sequences = [
        TrainingSequence(token_ids=tuple(ids), loss_mask=tuple(mask)) for ids, mask, _ in played
    ]
    batch = pack(sequences, row_tokens=256, gap=0).to(device)
    with torch.no_grad(), Hardware(device, torch.bfloat16).precision():
        scored = score(model, batch).logprobs_N
    width = max(len(one.token_ids) for one in sequences)
    dense = batch.dense(scored.float(), width=width).cpu()
    gaps = [
        abs(ours - float(dense[row, place]))
        for row, (_, mask, logprobs) in enumerate(played)
        for ours, place in zip(logprobs, np.flatnonzero(mask), strict=True)
    ]
    print(f"gap of log-probs: mean {np.mean(gaps):.1e}, largest {np.max(gaps):.1e}")
    assert np.mean(gaps) < 0.02
