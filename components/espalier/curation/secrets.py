"""Personal data and secrets: what must be in no row, by the shape that it has."""

from __future__ import annotations

import re

_SHAPES = {
    "private_key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "api_key": re.compile(
        r"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}"
        r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{35}|hf_[A-Za-z0-9]{30,})"
    ),
    "token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    "email": re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"),
    "phone": re.compile(r"(?<![\w+])\+\d{1,3}[ .()-]*(?:\d[ .()-]*){8,12}\b"),
    "ip_address": re.compile(
        r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"
    ),
    "password": re.compile(r"(?i)\b(?:password|passwd|secret_key|api_key)\s*[=:]\s*\S{6,}"),
}
_CARD = re.compile(r"(?<![\d.,])(?:\d[ -]?){12,18}\d(?![\d.,])")


def secret_in(text: str) -> str:
    """The kind of the first thing that looks like personal data or a secret; empty for none."""
    for kind, shape in _SHAPES.items():
        if shape.search(text):
            return kind
    if any(_is_card(re.sub(r"\D", "", found[0])) for found in _CARD.finditer(text)):
        return "card_number"
    return ""


def _is_card(digits: str) -> bool:
    """Luhn's check: every second digit from the right doubled, the sum a multiple of ten."""
    doubled = [
        int(digit) if place % 2 == 0 else sum(divmod(2 * int(digit), 10))
        for place, digit in enumerate(reversed(digits))
    ]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0
