"""Loading and saving policy directories: plain Hugging Face, nothing of ours inside."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from espalier.records import PolicyError


class Policy(NamedTuple):
    """A causal LM and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_policy(directory: Path) -> Policy:
    """Load a policy directory in float32 on the CPU, without touching the network.

    Raises:
        PolicyError: no such directory, or not a causal language model with a tokenizer.
    """
    tokenizer = load_tokenizer(directory)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"{directory}: cannot be loaded as a causal LM: {error}") from error
    return Policy(model.eval(), tokenizer)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a policy directory, without touching the network.

    Raises:
        PolicyError: no such directory, or none with a tokenizer.
    """
    if not (directory / "config.json").is_file():
        raise PolicyError(
            f"{directory}: not a policy directory (no config.json). Expected a Hugging Face model "
            "directory with config, safetensors and tokenizer."
        )
    # a missing optional CUDA kernel is no news on a CPU
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{directory}: cannot be loaded as a causal LM: {error}") from error


def save_policy(policy: Policy, directory: Path) -> None:
    """Write the directory that `load_policy` (and plain transformers) reads."""
    policy.model.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)


def load_weights_into(model: PreTrainedModel, directory: Path) -> None:
    """Give `model`, in place, the weights of a policy directory of the same architecture.

    Raises:
        PolicyError: no such policy, or one of another shape.
    """
    weights = load_policy(directory).model.state_dict()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise PolicyError(
            f"{directory}: its weights do not fit the policy in memory: {error}"
        ) from error
