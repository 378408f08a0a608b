"""The dialects by name, and the detection of the one that a model's chat template teaches."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

from espalier.dialects.hermes import Hermes
from espalier.dialects.llama3 import Llama3
from espalier.dialects.mistral import Mistral
from espalier.dialects.pythonic import Pythonic
from espalier.dialects.qwen3_coder import Qwen3Coder
from espalier.dialects.react import ReAct
from espalier.dialects.syntax import THINK, Syntax, split_thought
from espalier.dialects.tags import Tags
from espalier.named_classes import class_at, is_class_path
from espalier.records import Message, PolicyError, ToolCalls
from espalier.records.message import ToolSpec

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

_CALL_TAG = "<tool_call>"
_SIGNS: tuple[tuple[tuple[str, ...], DialectName], ...] = (
    # policies trained from scratch here name their dialect
    *(((f"{{#- dialect: {name} -#}}",), name) for name in SYNTAXES),
    (("[TOOL_CALLS]",), "mistral"),
    (("<function=", _CALL_TAG), "qwen3_coder"),  # Seed has other tags around the function
    ((_CALL_TAG,), "hermes"),
    (('"parameters":',), "llama3"),
    (("<|python_tag|>",), "llama3"),
    (("[func_name1(",), "pythonic"),
    (("<|python_start|>",), "pythonic"),
)
"""Texts that the chat templates of each dialect have together; the first match decides."""


_FOREIGN_SIGNS: tuple[tuple[str, str], ...] = (
    ("<arg_key>", "GLM"),
    ("[gMASK]", "GLM"),
    ("<|channel|>", "gpt-oss"),
    ("<\uff5ctool", "DeepSeek"),
    ("\uff5cDSML\uff5c", "DeepSeek"),
    ("<\uff5cAssistant\uff5c>", "DeepSeek"),
    ("<start_function_call>", "Gemma"),
    ("<start_of_turn>", "Gemma"),
    ("<|turn>", "Gemma"),
    ("<|START_ACTION|>", "Cohere"),
    ("<|START_OF_TURN_TOKEN|>", "Cohere"),
    ("<|tool_calls_section_begin|>", "Kimi"),
    ("<minimax:tool_call>", "MiniMax"),
    ("<|start_of_role|>", "Granite"),
    ("<|tool|>", "Phi"),
    ("<TOOLCALL>", "Nemotron"),
    ("<|action_start|>", "InternLM"),
    ("<|tools_prefix|>", "Apertus"),
)
"""Texts in the chat templates of families without a dialect here; the first match decides. Some of
GLM have the tags of hermes, but no JSON between them."""


_OTHER_CALL_TAG = re.compile(r"<(?!tool_call>)\|?[\w:]*(?:tool|function)_?calls?\w*\|?>", re.I)
"""A tag of calls that no dialect here has, such as <|tool_call_start|>, <tool_calls> or
<seed:tool_call>."""
_MENTIONS_TOOLS = re.compile(r"\btool(?:s|_calls)\b")

_SAYS_OWN = re.compile(r"\{#- dialect: (\S+:\S+) -#\}")
"""In the template of a tiny policy whose dialect is of another package."""


@lru_cache(maxsize=64)
def syntax_of(name: str) -> Syntax:
    """Return the syntax of that name, or the one that is at module:Class.

    Raises:
        ValueError: there is none, or what is there is no syntax.
    """
    if name in SYNTAXES:
        return SYNTAXES[cast("DialectName", name)]
    if not is_class_path(name):
        close = difflib.get_close_matches(name, SYNTAXES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SYNTAXES)};"
        raise ValueError(
            f"no dialect is named {name!r}; {hint} one of your own is named as module:Class"
        )
    own = class_at(name, Syntax)
    # a profile, a chat template and messages call it by where it is
    named = type(own.__name__, (own,), {"name": name, "__module__": own.__module__})
    return cast("type[Syntax]", named)()


def detected_dialect(chat_template: str) -> DialectName:
    """Return the dialect that a chat template teaches; tags if it teaches no calls.

    Raises:
        PolicyError: it is one of another package. The model does not choose what is imported, so
            the profile has to name it.
    """
    if own := _SAYS_OWN.search(chat_template):
        raise PolicyError(
            f"the policy writes the dialect {own[1]}, which is not one of espalier: set "
            f'policy.dialect = "{own[1]}", if you trust that module'
        )
    return _shown_dialect(chat_template) or "tags"


def _shown_dialect(chat_template: str) -> DialectName | None:
    """Return the dialect whose signs a chat template has; None if it has no dialect's."""
    for signs, name in _SIGNS:
        if all(sign in chat_template for sign in signs):
            return name
    return None


def foreign_format(chat_template: str) -> str | None:
    """Return the family whose call format a chat template has, if no dialect here writes it.

    "" stands for a family that is not known here: the template has a tag of calls that no dialect
    has, or it mentions tools and has the signs of no dialect.
    """
    if "{#- dialect:" in chat_template:
        return None
    for sign, family in _FOREIGN_SIGNS:
        if sign in chat_template:
            return family
    has_other_tag = _CALL_TAG not in chat_template and _OTHER_CALL_TAG.search(chat_template)
    mentions_tools = _MENTIONS_TOOLS.search(chat_template)
    if has_other_tag or (mentions_tools and _shown_dialect(chat_template) is None):
        return ""
    return None


def dialect_source(setting: str, chat_template: str) -> str:
    """Return what decided on the dialect, in words.

    Args:
        setting: the profile's setting.
        chat_template: the model's template.
    """
    if setting != "auto":
        return "policy.dialect"
    if _shown_dialect(chat_template) is not None:
        return "its chat template"
    return "the fallback: its chat template has no known call format"


IN_THOUGHT, BROKEN = "in_thought", "broken"
"""What `unread_call` returns besides names of dialects."""


def unread_call(
    said: Message, tools: Sequence[ToolSpec], own: Syntax, *, is_malformed: bool
) -> str | None:
    """Return why the call in a message that ended an episode was not read; None if it holds none.

    Args:
        said: a message of the policy without calls.
        tools: tools that the policy may call; without any, every name counts as one's.
        own: syntax of the policy's dialect.
        is_malformed: whether the dialect could not read the message.

    Returns:
        `IN_THOUGHT`, the name of the dialect that reads the call, or `BROKEN`: malformed, with the
        name of a tool.
    """
    names = {tool.name for tool in tools}
    thought, rest = split_thought(said.content)
    whole = f"{said.thought or ''}\n{said.content}".replace(THINK[0], "").replace(THINK[1], "")
    for syntax in {own.name: own, **SYNTAXES}.values():
        is_own = syntax is own
        for text in (said.thought or thought or "", whole, "" if is_own else rest):
            if _calls(syntax, text.strip(), tools, names):
                return IN_THOUGHT if is_own else syntax.name
    named = not names or any(name in said.content for name in names)
    return BROKEN if is_malformed and named else None


def _calls(syntax: Syntax, text: str, tools: Sequence[ToolSpec], names: set[str]) -> bool:
    """Return whether a text, or its end from a tag of a call on, calls one of the named tools."""
    starts = [text.find(mark) for mark in syntax.kind_markers(tools)[:-1] if mark in text]
    end = text[min(starts, default=0) :]
    found = [syntax.parse(one, tools) for one in (text, f"{THINK[0]} . {THINK[1]} {end}")]
    called = {call.name for one in found if isinstance(one, ToolCalls) for call in one.calls}
    return bool(called and (not names or names & called))


def chosen_dialect(setting: str, model: Path | None) -> str:
    """Return `setting`, or for "auto" the dialect that the chat template of `model` teaches.

    Args:
        setting: the profile's setting.
        model: model directory; None is the tiny policy, which learns tags.

    Raises:
        PolicyError: the template names a dialect of another package.
    """
    if setting != "auto":
        return setting
    if model is None:
        return "tags"
    for name, read in (("chat_template.jinja", str), ("tokenizer_config.json", _named_template)):
        path = model / name
        if path.is_file():
            return detected_dialect(read(path.read_text(encoding="utf-8", errors="replace")))
    return detected_dialect("")  # loading the model reports that it has no template


def _named_template(config: str) -> str:
    """Return the template that a tokenizer's configuration holds; several of them one by one."""
    try:
        found = json.loads(config).get("chat_template")
    except (ValueError, AttributeError, RecursionError):
        return ""
    if isinstance(found, list):  # a list of {"name": ..., "template": ...}
        named = (one.get("template") for one in found if isinstance(one, dict))
        return "\n".join(template for template in named if isinstance(template, str))
    return found if isinstance(found, str) else ""
