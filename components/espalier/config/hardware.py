"""Profile section `hardware`: what every stage that trains a policy computes on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.config.data import Section


class HardwareConfig(Section):
    """Device, number format and memory of training."""

    device: str = Field(default="auto", min_length=1)
    """`auto` is the accelerator, where there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products; `auto` is bfloat16 on a GPU that has it."""
    activation_checkpointing: bool = False
    """Computes activations again in the backward pass: a third more work, far less memory."""
    micro_batch_tokens: int = Field(default=8192, ge=64)
    """Tokens that are forwarded at once; gradients of the parts are summed."""
