r"""The assistant's part of a conversation, as its chat template marks it.

A template puts `{% generation %}` around the text that the policy is to write, end-of-turn token
included; the rest is read and never trained on:

    text     <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n  Hello there.<|im_end|>\n
    written  0                                                        1
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from espalier.dialects.rendering import rendering
from espalier.records import PolicyError

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Segment(NamedTuple):
    """A part of the rendered text that is either all written by the assistant or all read."""

    text: str
    written: bool
    """Whether the assistant writes it."""


class EncodedConversation(NamedTuple):
    """Token ids of a conversation; `assistant_mask` is 1 on the assistant's part."""

    token_ids: tuple[int, ...]
    assistant_mask: tuple[int, ...]


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> EncodedConversation:
    """Render a conversation in the tokenizer's chat template, and encode it as one text.

    Args:
        tokenizer: a fast tokenizer, because the mask needs each token's position in the text.
        messages: messages in the Hugging Face format: role, content, and any tool calls.
        tools: JSON schemas of the tools.

    Raises:
        PolicyError: the template marks nothing, so that there is no mask.
    """
    segments = assistant_segments(tokenizer, messages, tools)
    encoded = tokenizer(
        "".join(segment.text for segment in segments),
        add_special_tokens=False,
        return_offsets_mapping=True,
    )
    mask = token_mask(encoded["offset_mapping"], segments)
    return EncodedConversation(tuple(encoded["input_ids"]), mask)


def assistant_segments(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> tuple[Segment, ...]:
    """Return the rendered conversation, cut where the template's marks begin and end."""
    template = tokenizer.get_chat_template(tools=tools)
    if not _MARKER.search(template):
        raise PolicyError(
            f"{tokenizer.name_or_path}: its chat template does not mark what the assistant writes. "
            "Put {% generation %} and {% endgeneration %} around it in tokenizer_config.json."
        )
    special_tokens: dict[str, Any] = dict(tokenizer.special_tokens_map)
    with rendering(template):
        rendered: Any = render_jinja_template(
            [messages],
            tools=list(tools) if tools else None,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **special_tokens,
        )
    (text,), (spans,) = rendered
    written = bytearray(len(text))
    for start, end in spans:
        written[start:end] = b"\1" * (end - start)
    runs = (list(run) for _, run in groupby(range(len(text)), key=lambda place: written[place]))
    return tuple(Segment(text[run[0] : run[-1] + 1], bool(written[run[0]])) for run in runs)


def token_mask(offsets: Iterable[tuple[int, int]], segments: Iterable[Segment]) -> tuple[int, ...]:
    """Return 1 for each token that has a character of a written segment, else 0.

    Args:
        offsets: for each token, where its text begins and ends among all characters.
        segments: the whole text.
    """
    written = b"".join(bytes([segment.written]) * len(segment.text) for segment in segments)
    return tuple(int(any(written[start:end])) for start, end in offsets)
