"""Rendering a chat template, which is a program that came with a model, within bounds.

transformers renders in a sandbox that keeps a template from files and from Python's objects, and
lets it compute for as long as it likes. Here it has `WITHIN_S`, and whatever it raises is a
`TemplateError`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from jinja2 import Environment, TemplateError, TemplateRuntimeError

WITHIN_S = 10.0
"""Seconds for one rendering; those of real conversations take milliseconds."""
_NO_LOADER = "no loader"
_POWER = "**"
_COMPILED = "<template>"
"""File name that jinja gives to a compiled template. Only such code is traced: nothing else that a
rendering calls can loop without end."""


@contextmanager
def rendering(template: str) -> Generator[None]:
    """Bound the rendering of a chat template within the block.

    A trace function looks at the clock at every line of the template and every call that it makes:
    no signal and no other thread can end a rendering that runs in any thread.

    Args:
        template: the template's source.

    Raises:
        TemplateError: the template raised an error, or took longer than `WITHIN_S`.
    """
    _refuse_powers(template)
    end_s, before = time.monotonic() + WITHIN_S, sys.gettrace()

    def look_at_the_clock(frame: FrameType, _event: str, _argument: object) -> Any:  # noqa: ANN401 (itself)
        if time.monotonic() > end_s:
            raise TemplateRuntimeError(f"it does not end within {WITHIN_S:g} s")
        return look_at_the_clock if frame.f_code.co_filename == _COMPILED else None

    try:
        sys.settrace(look_at_the_clock)
        try:
            yield
        finally:
            sys.settrace(before)
    except Exception as error:  # a template may fail with any class of error
        if not isinstance(error, TemplateError):
            why = f"it fails with {type(error).__name__}: {error}"
            if _NO_LOADER in str(error):
                why = "it includes or imports another template, and a chat template stands alone"
            raise TemplateRuntimeError(why) from error
        raise


@lru_cache(maxsize=32)
def _refuse_powers(template: str) -> None:
    """Refuse a template with powers: Python computes a large one in a single step, for hours.

    Raises:
        TemplateError: it has one, or is no template.
    """
    if _POWER in template and any(
        (kind, text) == ("operator", _POWER) for _, kind, text in Environment().lex(template)
    ):
        raise TemplateRuntimeError(f"it computes powers ({_POWER}), which have no bound")
