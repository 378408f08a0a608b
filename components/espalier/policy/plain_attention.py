"""Models whose tokens interact only in causal attention, so that it can be computed differently.

The engine reads keys and values from pages, and the update from a tree of prefixes; both register
an attention function with transformers, and use the rest of such models unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedModel

_MORE_THAN_PLAIN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of layers with a window, capped logits, an attention sink, or relative positions."""


class NotPlainAttentionError(Exception):
    """A layer needs more than causal attention."""


def has_plain_attention(model: PreTrainedModel) -> bool:
    """Whether tokens of `model` interact only in causal attention, as far as its config tells.

    What a config does not tell is found by comparing both ways on a short text.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    has_window = not kinds and getattr(config, "sliding_window", None) is not None
    attends = bool(getattr(model, "_supports_attention_backend", False))
    return attends and not has_window and kinds <= {"full_attention"}


def require_plain_attention(asked: Mapping[str, object]) -> None:
    """Check the options with which a layer calls its attention function.

    Raises:
        NotPlainAttentionError: they need more than plain attention.
    """
    more = [name for name in _MORE_THAN_PLAIN if asked.get(name) is not None]
    if more:
        raise NotPlainAttentionError(", ".join(more))
