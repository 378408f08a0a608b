"""Kubernetes' spelling of amounts, names and images, as types of profile fields."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti|)")
_FACTORS = {
    "m": Decimal("0.001"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[^@\s]+:([\w][\w.-]{0,127})")


def amount(quantity: str) -> Decimal:
    """How much `quantity` is: cores for "500m", bytes for "2Gi".

    Raises:
        ValueError: not an amount that Kubernetes reads.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no amount; write it as 500m or 2 (cores), 512Mi or 8Gi")
    return Decimal(match[1]) * _FACTORS[match[2]]


def _spelt(value: object) -> object:
    """TOML writes whole cores as a number; a bool, which is one as well, is none."""
    return str(value) if type(value) is int else value


def _quantity(text: str) -> str:
    amount(text)
    return text


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(
            f"{text!r} is no name in Kubernetes: lower-case letters, digits and dashes, at most 63"
        )
    return text


def _pinned_image(text: str) -> str:
    tag = _TAG.fullmatch(text)
    if not _DIGEST.fullmatch(text) and (tag is None or tag[1] == "latest"):
        raise ValueError(
            f"{text!r} may be another image tomorrow; name it by digest (IMAGE@sha256:...), or by "
            "a tag other than latest"
        )
    return text


Quantity = Annotated[str, BeforeValidator(_spelt), AfterValidator(_quantity)]
DnsLabel = Annotated[str, AfterValidator(_dns_label)]
PinnedImage = Annotated[str, AfterValidator(_pinned_image)]
"""An image by digest, or by a tag that is never moved."""
