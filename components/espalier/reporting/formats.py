"""Number formats of the report: percent for rates, minutes for seconds, commas in thousands."""

from __future__ import annotations

import math
import unicodedata

NOT_RUN = "not run"

_KEPT_CONTROLS = frozenset("\n\t")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def percent(rate: float | None) -> str:
    """A rate of 0-1 as `67.4 %`."""
    return NOT_RUN if _absent(rate) else f"{100 * float(rate or 0.0):.1f} %"


def points(difference: float | None) -> str:
    """A difference of two rates as `+24.3` percentage points."""
    return NOT_RUN if _absent(difference) else f"{100 * float(difference or 0.0):+.1f}"


def interval(ends: tuple[float, float] | list[float] | None) -> str:
    """Two rates of 0-1 as `63.2 to 71.5` percent."""
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}" if ends else ""


def signed_interval(ends: tuple[float, float] | list[float] | None) -> str:
    """Two differences of rates as `+18.1 to +30.6` percentage points."""
    return f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f}" if ends else ""


def duration(seconds: float | None) -> str:
    """`0.4 s`, `42 s`, `3 min 07 s`, `2 h 05 min`."""
    if _absent(seconds) or seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(mebibytes: float | None) -> str:
    """`812 MB` or `2.1 GB`."""
    if _absent(mebibytes) or mebibytes is None:
        return ""
    return f"{mebibytes:.0f} MB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GB"


def number(value: object) -> str:
    """Integers with commas, floats with four digits, an empty string for null."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def words(name: str) -> str:
    """A code name as words: `warm_start` reads `warm start`."""
    return name.replace("_", " ")


def visible(text: str) -> str:
    r"""Text with every invisible or direction-changing character spelled out as `\u{202e}`.

    Invisible characters in sampled text or documents could make a transcript read differently from
    what the verifier compared.
    """
    return "".join(
        character
        if character in _KEPT_CONTROLS or unicodedata.category(character) not in _INVISIBLE
        else f"\\u{{{ord(character):x}}}"
        for character in text
    )


def _absent(value: float | None) -> bool:
    return value is None or math.isnan(value)
