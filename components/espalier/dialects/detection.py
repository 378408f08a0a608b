"""The dialects by name, and the detection of the one that a model's chat template teaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from espalier.dialects.hermes import Hermes
from espalier.dialects.llama3 import Llama3
from espalier.dialects.mistral import Mistral
from espalier.dialects.pythonic import Pythonic
from espalier.dialects.qwen3_coder import Qwen3Coder
from espalier.dialects.react import ReAct
from espalier.dialects.syntax import Syntax
from espalier.dialects.tags import Tags

DialectName = Literal["tags", "react", "hermes", "llama3", "mistral", "qwen3_coder", "pythonic"]

SYNTAXES: dict[DialectName, Syntax] = {
    "tags": Tags(),
    "react": ReAct(),
    "hermes": Hermes(),
    "llama3": Llama3(),
    "mistral": Mistral(),
    "qwen3_coder": Qwen3Coder(),
    "pythonic": Pythonic(),
}

_SIGNS: tuple[tuple[str, DialectName], ...] = (
    # policies trained from scratch here name their dialect
    *((f"{{#- dialect: {name} -#}}", name) for name in SYNTAXES),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ('"parameters":', "llama3"),
    ("<|python_tag|>", "llama3"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
)
"""Texts in the chat templates of each dialect; the first match decides."""


def detected_dialect(chat_template: str) -> DialectName:
    """Return the dialect that a chat template teaches; tags if it teaches no calls."""
    for sign, name in _SIGNS:
        if sign in chat_template:
            return name
    return "tags"


def chosen_dialect(setting: DialectName | Literal["auto"], model: Path | None) -> DialectName:
    """Return the dialect of a profile's policy.

    Args:
        setting: the profile's setting; "auto" reads the chat template of `model`.
        model: model directory; None is the embedded policy, which learns tags.
    """
    if setting != "auto":
        return setting
    return "tags" if model is None else detected_dialect(_chat_template(model))


def _chat_template(directory: Path) -> str:
    """Return a model directory's template; empty without one, which loading the model reports."""
    for name, read in (("chat_template.jinja", str), ("tokenizer_config.json", _named_template)):
        path = directory / name
        if path.is_file():
            return read(path.read_text(encoding="utf-8"))
    return ""


def _named_template(config: str) -> str:
    try:
        found = json.loads(config).get("chat_template")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else json.dumps(found)
