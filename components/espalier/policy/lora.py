"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) by peft, inside an ordinary model.

The adapter's layers replace the model's linear ones, and the model keeps its class: it is run,
decoded and scored like any other. Only the adapter is trained. The saved directory holds the merged
weights, as of a model without an adapter, and the adapter beside them:

    policy/config.json, model.safetensors, ...    merged, for every reader
    policy/adapter/adapter_config.json, adapter_model.safetensors    as peft and vLLM read it
    policy/adapter/base.json    name and digest of its base model
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import Linear as LoraLinear
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from espalier.config import LoraConfig
from espalier.policy.reading import reading
from espalier.records import PolicyError
from espalier.records.adapter import ADAPTER_FOLDER, AdapterBase, write_base

_ADAPTER = "default"
"""peft's name for the only adapter of a model here."""
_PREFIX = "base_model.model."
"""Prefix of every tensor's name in a file that peft reads."""
_WEIGHTS = "adapter_model.safetensors"


def add_adapter(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> None:
    """Give `model` an adapter that changes nothing yet, and make everything else untrained.

    Args:
        model: a model without an adapter.
        config: rank, scale and the layers that get one.
        seed: seed of the first of its two factors; the second begins at zero.

    Raises:
        PolicyError: the model lacks layers of these names.
    """
    torch.manual_seed(seed)
    settings = _peft_config(config)
    try:
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    except ValueError as error:
        plain = [name for name, part in model.named_modules() if type(part) is nn.Linear]
        names = {name.rpartition(".")[2] for name in plain}
        raise PolicyError(
            f"policy.lora.target = {list(config.target)}: {type(model).__name__} has no such "
            f"linear layers; it has {', '.join(sorted(names))}"
        ) from error
    known: Any = model  # the attribute is typed for models that peft wraps
    known.peft_config = {_ADAPTER: settings}


def has_adapter(model: nn.Module) -> bool:
    """Whether only an adapter of `model` is trained."""
    return next(_adapted(model), None) is not None


def merged_weight(layer: nn.Module) -> Tensor:
    """Return [out, in], the weight of a linear layer with its adapter, if any, added."""
    if isinstance(layer, LoraLinear):
        base: Any = layer.get_base_layer()
        return base.weight.detach() + layer.get_delta_weight(_ADAPTER)
    plain: Any = layer
    return plain.weight


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of `model` as those of its class without adapters."""
    merged = {f"{name}.weight": merged_weight(layer) for name, layer in _adapted(model)}
    for name, tensor in model.state_dict().items():
        plain = name.replace(".base_layer.", ".")
        if ".lora_" not in name and plain not in merged:
            merged[plain] = tensor
    return merged


@contextmanager
def adapter_off(model: nn.Module) -> Generator[None]:
    """Within the block, `model` computes as its base does."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True  # `enable_adapters` would also stop their training
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def save_adapter(model: PreTrainedModel, directory: Path, base: AdapterBase) -> None:
    """Write the adapter of `model` as peft reads it, and a note of its base model."""
    directory.mkdir(parents=True)
    known: Any = model
    settings = known.peft_config[_ADAPTER]
    settings.base_model_name_or_path = base.name
    settings.inference_mode = True
    settings.save_pretrained(directory)
    settings.inference_mode = False
    # peft would look up the base on the Hub to see whether its vocabulary has changed
    tensors = peft.get_peft_model_state_dict(
        model, adapter_name=_ADAPTER, save_embedding_layers=False
    )
    named = {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(named, directory / _WEIGHTS)
    write_base(directory, base)


@torch.no_grad()
def continue_adapter(model: PreTrainedModel, directory: Path, config: LoraConfig) -> bool:
    """Take the adapter of a policy directory out of its merged weights, to train it further.

    Args:
        model: a model with the merged weights of `directory`, and no adapter.
        directory: directory of a policy.
        config: rank, scale and layers, as for `add_adapter`.

    Returns:
        False if the directory has no adapter of this rank, scale and target; `model` is unchanged.

    Raises:
        PolicyError: the adapter is damaged, or belongs to another model.
    """
    folder = directory / ADAPTER_FOLDER
    if not (folder / _WEIGHTS).is_file():
        return False
    with reading(folder, "an adapter"):
        held: Any = peft.LoraConfig.from_pretrained(str(folder))
    asked = _peft_config(config)
    if (held.r, held.lora_alpha, set(held.target_modules or ())) != (
        asked.r,
        asked.lora_alpha,
        set(config.target),
    ):
        return False
    add_adapter(model, config, seed=0)
    try:
        tensors = load_file(folder / _WEIGHTS)
        plain = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
        found = peft.set_peft_model_state_dict(model, plain, adapter_name=_ADAPTER)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise PolicyError(f"{folder}: cannot be loaded as an adapter: {error}") from error
    if found.unexpected_keys:
        raise PolicyError(
            f"{folder}: an adapter of another model: {found.unexpected_keys[0]} is not in this one"
        )
    for _, layer in _adapted(model):
        base: Any = layer.get_base_layer()
        base.weight -= layer.get_delta_weight(_ADAPTER)
    return True


def _adapted(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    for name, part in model.named_modules():
        if isinstance(part, LoraLinear):
            yield name, part


def _peft_config(config: LoraConfig) -> peft.LoraConfig:
    alpha: Any = config.alpha  # typed as int, and only divided by the rank
    return peft.LoraConfig(
        r=config.rank, lora_alpha=alpha, target_modules=list(config.target), bias="none"
    )
