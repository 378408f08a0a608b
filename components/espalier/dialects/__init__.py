"""Dialects: how a policy writes thoughts and calls, and how messages become its tokens.

A syntax (`tags`, `react`, `hermes`, `llama3`, `mistral`, `qwen3_coder`, `pythonic`, or a class of
another package) spells one message and parses it. `espalier.dialects.dialect.Dialect` joins a
syntax with a tokenizer and its chat template; it is imported where tokens are needed.
"""

from espalier.dialects.detection import (
    SYNTAXES,
    DialectName,
    chosen_dialect,
    detected_dialect,
    dialect_source,
    foreign_format,
    syntax_of,
    unread_call,
)
from espalier.dialects.syntax import Syntax

__all__ = [
    "SYNTAXES",
    "DialectName",
    "Syntax",
    "chosen_dialect",
    "detected_dialect",
    "dialect_source",
    "foreign_format",
    "syntax_of",
    "unread_call",
]
