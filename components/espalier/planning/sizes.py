"""Size of the policy that a profile trains: its parameters, and its memory per token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espalier.config import LoraConfig, PolicyConfig, named_reference
from espalier.records import PolicyError
from espalier.steps.given_model import missing_model, stored_parameters

_CONVOLUTION_TAPS = 3  # conv_L_cache of LFM2's config


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySize:
    """Sizes of a decoder-only transformer, from which its memory and time are computed."""

    parameters: int
    trained: int
    """Parameters that are trained: with LoRA the adapter's, otherwise all."""
    vocabulary: int
    hidden: int
    feed_forward: int
    attention_layers: int
    other_layers: int
    """Number of short convolutions, which keep a few values per context and no cache."""
    key_value_width: int
    """Key heads x head width: numbers per cached token and layer, for keys and again for values."""

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.attention_layers + self.other_layers

    @property
    def cache_floats_per_token(self) -> int:
        """Numbers of a token's keys and values in all layers."""
        return 2 * self.attention_layers * self.key_value_width

    @property
    def state_floats_per_row(self) -> int:
        """Numbers that the convolutions keep of a context, in all layers."""
        return self.other_layers * self.hidden * (_CONVOLUTION_TAPS - 1)


def policy_size(config: PolicyConfig) -> PolicySize:
    """The size of the tiny policy, or of the given model.

    The tiny policy is counted with the whole of `vocab_size`: a tokenizer that finds fewer
    words makes a smaller one. A named model is known before it is added.

    Raises:
        PolicyError: the given model is not on this machine, or its directory has no readable
            config.json or safetensors.
    """
    if config.model is None or config.directory is None:
        size = _embedded(config)
    elif config.directory.is_dir():
        size = _given(config.directory)
    elif (named := named_reference(config.model)) is not None:
        size = _shaped(named.model.parameters, named.model.shape)
    else:
        raise PolicyError(missing_model(config.model))
    if config.lora is None:
        return size
    return replace(size, trained=_adapter_parameters(size, config.lora))


def _adapter_parameters(size: PolicySize, config: LoraConfig) -> int:
    """Parameters of two factors for each targeted layer; unknown names count 0."""
    width, forward, cached = size.hidden, size.feed_forward, size.key_value_width
    both = {
        "q_proj": 2 * width,
        "k_proj": width + cached,
        "v_proj": width + cached,
        "o_proj": 2 * width,
        "gate_proj": width + forward,
        "up_proj": width + forward,
        "down_proj": width + forward,
    }
    return size.layers * config.rank * sum(both.get(name, 0) for name in config.target)


def _embedded(config: PolicyConfig) -> PolicySize:
    width, forward = config.hidden_size, config.feed_forward_size
    attention = config.layers.count("attention")
    convolutions = len(config.layers) - attention
    head_norms = 2 * (width // config.attention_heads)
    of_block = 3 * width * forward + 2 * width  # gate, up and down; two norms
    of_attention = 4 * width * width + head_norms
    of_convolution = 4 * width * width + _CONVOLUTION_TAPS * width  # 3 gates in, 1 out; the taps
    parameters = (
        config.vocab_size * width  # embeddings, which are the output projection too
        + width
        + len(config.layers) * of_block
        + attention * of_attention
        + convolutions * of_convolution
    )
    return PolicySize(
        parameters=parameters,
        trained=parameters,
        vocabulary=config.vocab_size,
        hidden=width,
        feed_forward=forward,
        attention_layers=attention,
        other_layers=convolutions,
        key_value_width=width,
    )


def _given(directory: Path) -> PolicySize:
    parameters = stored_parameters(directory)
    try:
        config = json.loads((directory / "config.json").read_bytes())
        return _shaped(parameters, config.get("text_config", config))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(
            f"policy.model = {directory}: its size cannot be read ({type(error).__name__}: "
            f"{error}). Expected a Hugging Face model directory with config.json and safetensors"
        ) from error


def _shaped(parameters: int, config: Mapping[str, Any]) -> PolicySize:
    """Return the size of a model with this config.json."""
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    head_width = int(config.get("head_dim") or hidden // heads)
    kinds = config.get("layer_types") or ["full_attention"] * layers
    cached = sum(kind != "conv" for kind in kinds)
    return PolicySize(
        parameters=parameters,
        trained=parameters,
        vocabulary=int(config["vocab_size"]),
        hidden=hidden,
        feed_forward=int(config.get("intermediate_size") or 4 * hidden),
        attention_layers=cached,
        other_layers=layers - cached,
        key_value_width=key_heads * head_width,
    )
