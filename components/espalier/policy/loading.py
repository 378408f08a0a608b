"""Loading and saving policy directories, which are plain Hugging Face model directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from espalier.config import HardwareConfig, Profile
from espalier.policy.hardware import Hardware
from espalier.policy.lora import (
    add_adapter,
    continue_adapter,
    merged_weights,
    save_adapter,
)
from espalier.policy.reading import AS_DATA, reading, require_config, weight_files
from espalier.records import PolicyError
from espalier.records.adapter import ADAPTER_FOLDER, AdapterBase, read_base

_NAMED_TENSORS = 5
"""Number of tensors that an error names per kind of fault; a damaged shard may lack hundreds."""


class Policy(NamedTuple):
    """A causal LM and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    base: AdapterBase | None = None
    """The base model of its adapter; None if all weights are trained."""


def load_policy(directory: Path) -> Policy:
    """Load a policy directory in float32 on the CPU, without touching the network.

    Raises:
        PolicyError: there is no such directory, it holds no causal language model with a tokenizer
            whose classes transformers has and whose weights are safetensors, or the weights do not
            fit its config: a tensor is missing, has another shape, or is unknown to the model.
    """
    tokenizer = load_tokenizer(directory)
    weight_files(directory)
    with reading(directory, "a causal LM"):
        # output_loading_info=True returns a pair, which transformers' annotation does not say
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            **AS_DATA,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else transformers raises without naming the tensor
        )
    model, loading_info = loaded
    _require_whole_weights(directory, loading_info)
    _require_finite_weights(directory, model)
    return Policy(model.eval(), tokenizer)


def load_policy_for_sampling(directory: Path, config: HardwareConfig) -> Policy:
    """Load a policy directory onto the device that this process samples on.

    Args:
        directory: directory of the policy.
        config: the profile's hardware, used as in `Hardware.for_sampling`.

    Raises:
        PolicyError: as `load_policy` does.
    """
    policy = load_policy(directory)
    Hardware.for_sampling(config).move(policy.model)
    return policy


def load_policy_to_train(directory: Path, profile: Profile, *, digest: str) -> Policy:
    """Load a policy directory onto the device that this process samples on, to be trained there.

    With `policy.lora` it has an adapter: the directory's own, if it has the same shape, or else a
    new one, of which the directory is the base.

    Args:
        directory: directory of the policy.
        profile: hardware, adapter and seed.
        digest: digest of the directory, by which a new adapter names its base.

    Raises:
        PolicyError: `load_policy` fails, the adapter is damaged or belongs to another model, or the
            model lacks the layers of `policy.lora.target`.
    """
    policy, config = load_policy(directory), profile.policy.lora
    base = None
    if config is not None:
        if continue_adapter(policy.model, directory, config):
            base = read_base(directory)
        else:
            add_adapter(policy.model, config, seed=profile.seed)
            base = AdapterBase(str(profile.policy.model or "embedded"), digest)
    Hardware.for_sampling(profile.hardware).move(policy.model)
    return policy._replace(base=base)


def _require_whole_weights(directory: Path, loading_info: Mapping[str, Any]) -> None:
    """Refuse weights that differ from what the config describes.

    transformers fills a missing or misshapen tensor with random numbers, and drops a tensor that
    the model lacks: one of an adapter, the scales of a quantised model, one of another model class.
    Tied weights, and those that the model's class may ignore, are in none of its lists.

    Raises:
        PolicyError: names the tensors of each kind.
    """
    misshapen = [
        f"{name} is {list(found)} instead of {list(expected)}"
        for name, found, expected in sorted(loading_info["mismatched_keys"])
    ]
    faults = {
        "missing": sorted(loading_info["missing_keys"]),
        "of another shape": misshapen,
        "unknown to the model": sorted(loading_info["unexpected_keys"]),
    }
    told = []
    for kind, names in faults.items():
        more = len(names) - _NAMED_TENSORS
        others = f" and {more} more" if more > 0 else ""
        if names:
            told.append(f"{kind}: {', '.join(names[:_NAMED_TENSORS])}{others}")
    if told:
        raise PolicyError(
            f"{directory}: its tensors are not those of its config.json ({'; '.join(told)}). Copy "
            "the model again if a file was cut short, merge an adapter into its base model first, "
            "and save with save_pretrained of the class that was trained."
        )


def _require_finite_weights(directory: Path, model: PreTrainedModel) -> None:
    """Refuse weights with which every probability is NaN, as a training that failed leaves them."""
    for name, weights in model.named_parameters():
        if weights.numel() and not all(end.isfinite() for end in weights.aminmax()):
            raise PolicyError(
                f"{directory}: {name} holds numbers that are not finite (NaN or infinite), so the "
                "model samples nothing. Take an earlier checkpoint, or train it again"
            )


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a policy directory, without touching the network.

    Raises:
        PolicyError: there is no such directory, or it has no tokenizer.
    """
    if not (directory / "config.json").is_file():
        raise PolicyError(
            f"{directory}: not a policy directory (no config.json). Expected a Hugging Face model "
            "directory with config, safetensors and tokenizer."
        )
    require_config(directory)
    transformers_logging.disable_progress_bar()
    with reading(directory, "a causal LM"):
        return AutoTokenizer.from_pretrained(directory, **AS_DATA)


def save_policy(policy: Policy, directory: Path) -> None:
    """Write a directory that `load_policy` (and plain transformers) reads.

    For a policy with an adapter it holds the merged weights, and the adapter beside them.
    """
    if policy.base is None:
        policy.model.save_pretrained(directory)
    else:
        policy.model.save_pretrained(directory, state_dict=merged_weights(policy.model))
        save_adapter(policy.model, directory / ADAPTER_FOLDER, policy.base)
    policy.tokenizer.save_pretrained(directory)


def load_weights_into(model: PreTrainedModel, directory: Path) -> None:
    """Load the weights of a policy directory of the same architecture into `model`, in place.

    Raises:
        PolicyError: there is no such policy, or it has another shape.
    """
    weights = load_policy(directory).model.state_dict()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise PolicyError(
            f"{directory}: its weights do not fit the policy in memory: {error}"
        ) from error
