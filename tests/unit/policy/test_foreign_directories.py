"""A model directory of somebody else: no code of it runs, and what is wrong with it is said."""

import io
import json
import os
import pickle
import shutil
import sys

import pytest
import torch

from espalier.dialects.detection import chosen_dialect
from espalier.policy.loading import load_policy, load_tokenizer, save_policy
from espalier.records import PolicyError
from espalier.records.adapter import read_base
from tests.factories.tiny import tiny_policy

INDEX = "model.safetensors.index.json"
TEXTS = {
    "no json": "{", "list": "[]", "null": "null", "text": '"x"', "deep": "[" * 100_000,
    "binary": b"\xff\xfe\x00", "empty": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    save_policy(tiny_policy(), folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def write(path, text):
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def evil(folder):
    """Code that leaves a file behind, and the file."""
    ran = folder.parent / "ran"
    (folder / "own.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import LlamaConfig as C, LlamaForCausalLM as M"
        "\nfrom transformers import PreTrainedTokenizerFast as T\n"
    )
    return ran


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}),
        (
            "config.json",
            {
                "model_type": "own",
                "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},
            },
        ),
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "a/b--own.C"}}),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.T"]}},
        ),
    ],
)
def test_code_of_a_directory_never_runs(folder, monkeypatch, capsys, file, fields):
    ran = evil(folder)
    change(folder / file, **fields)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))
    with pytest.raises(PolicyError, match="never run"):
        load_policy(folder)
    assert not ran.exists()
    assert capsys.readouterr().out == "", "nobody is asked"


def test_a_known_class_is_loaded_whatever_code_is_beside_it(folder):
    ran = evil(folder)
    change(folder / "config.json", auto_map={"AutoConfig": "own.C"})
    load_policy(folder)
    assert not ran.exists()


class Boom:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
@pytest.mark.parametrize("kind", ["hostile", "torch's own"])
def test_weights_that_are_pickles_are_refused_by_name(folder, name, kind):
    (folder / "model.safetensors").unlink()
    if kind == "hostile":
        (folder / name).write_bytes(pickle.dumps(Boom(folder / "ran")))
    else:
        torch.save(tiny_policy().model.state_dict(), folder / name)
    with pytest.raises(PolicyError, match=f"pickles .{name}"):
        load_policy(folder)
    assert not (folder / "ran").exists()


BROKEN_INDEXES = TEXTS | {
    "no map": '{"metadata": {}}',
    "no metadata": '{"weight_map": {"a": "x"}}',
    "map is a list": '{"metadata": {}, "weight_map": []}',
    "map is null": '{"metadata": {}, "weight_map": null}',
    "map is empty": '{"metadata": {}, "weight_map": {}}',
    "numbers": '{"metadata": {}, "weight_map": {"a": 1}}',
    "objects": '{"metadata": {}, "weight_map": {"a": {"b": "c"}}}',
    "missing": '{"metadata": {}, "weight_map": {"a": "gone.safetensors"}}',
    "above": '{"metadata": {}, "weight_map": {"a": "../model.safetensors"}}',
    "absolute": '{"metadata": {}, "weight_map": {"a": "/etc/passwd"}}',
    "itself": '{"metadata": {}, "weight_map": {"a": "."}}',
}


@pytest.mark.parametrize("kind", BROKEN_INDEXES)
def test_a_broken_index_of_weights_is_named(folder, kind):
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    write(folder / INDEX, BROKEN_INDEXES[kind])
    with pytest.raises(PolicyError, match=INDEX):
        load_policy(folder)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    "file",
    [
        "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json",
    ],
)  # fmt: skip
def test_a_broken_file_of_a_model_is_one_message(folder, file, kind):
    write(folder / file, TEXTS[kind])
    with pytest.raises(PolicyError, match="causal LM"):
        load_policy(folder)
    chosen_dialect("auto", folder)  # this reads its template, and leaves faults to the loader


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("config.json", {"hidden_size": "x"}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"model_type": 5}),
        ("tokenizer.json", {"model": {}}),
        ("tokenizer.json", {"added_tokens": 5}),
        ("tokenizer_config.json", {"tokenizer_class": 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
    ],
)
def test_values_of_another_type_are_one_message(folder, file, fields):
    change(folder / file, **fields)
    with pytest.raises(PolicyError, match="causal LM"):
        load_policy(folder)


@pytest.mark.parametrize("kind", [*TEXTS, "other"])
def test_a_damaged_note_of_an_adapters_base_is_named(folder, kind):
    (folder / "adapter").mkdir()
    write(folder / "adapter" / "base.json", {**TEXTS, "other": '{"a": 1}'}[kind])
    with pytest.raises(PolicyError, match=r"base\.json"):
        read_base(folder)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", b'{"a": "b', "config.json: no JSON"),
        ("tokenizer.json", b'{"version": "1.0", "trunc', "tokenizer.json: no JSON"),
        ("tokenizer.json", None, "tokenizer.json: not there"),
        ("tokenizer_config.json", b"", "tokenizer_config.json: no JSON"),
        ("model.safetensors", b"", "model.safetensors: no whole safetensors"),
        ("model.safetensors", b"\x40\0\0\0\0\0\0\0{", "model.safetensors: no whole safetensors"),
    ],
)
def test_a_file_that_was_cut_short_is_named(folder, file, content, said):
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    with pytest.raises(PolicyError, match=said):
        load_policy(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(folder, value):
    policy = load_policy(folder)
    name, weights = list(policy.model.named_parameters())[-1]
    with torch.no_grad():
        weights.view(-1)[-1] = value
    policy.model.save_pretrained(folder)
    with pytest.raises(PolicyError, match=f"{name} holds"):
        load_policy(folder)


def test_a_tokenizer_alone_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    load_tokenizer(folder)
