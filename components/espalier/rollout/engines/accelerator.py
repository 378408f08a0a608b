"""What an accelerator needs beyond the code for the CPU: few transfers, and writes without a sort.

A step is planned on the host, as about twenty small tensors, which move in one transfer: one
transfer for each would take as long as the step's arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_ALIGNED = 16
"""Alignment in bytes: kernels read this many at once."""


def to_device(plan: T, device: torch.device) -> T:
    """Return `plan` with all its tensors moved to `device` in one transfer.

    Args:
        plan: a tensor, or tuples, named tuples and dataclasses of tensors and other values.
        device: device of the weights.
    """
    if device.type == "cpu":
        return plan
    tensors: list[Tensor] = []

    def listed(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _mapped(plan, listed)
    moved = iter(_moved(tensors, device))
    return _mapped(plan, lambda _: next(moved))


def _mapped(plan: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401 (any plan)
    if isinstance(plan, Tensor):
        return change(plan)
    if isinstance(plan, tuple):
        parts = [_mapped(part, change) for part in plan]
        return type(plan)(*parts) if hasattr(plan, "_fields") else tuple(parts)
    if is_dataclass(plan) and not isinstance(plan, type):
        parts = {one.name: _mapped(getattr(plan, one.name), change) for one in fields(plan)}
        return replace(plan, **parts)
    return plan


def _moved(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    whole = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
    line = torch.empty(sum(whole), dtype=torch.uint8)
    for tensor, part in zip(tensors, line.split(whole), strict=True):
        _as(tensor, part).copy_(tensor)
    parts = line.to(device).split(whole)
    return [_as(tensor, part) for tensor, part in zip(tensors, parts, strict=True)]


def _as(tensor: Tensor, part: Tensor) -> Tensor:
    """Return the bytes of `part` as a tensor shaped and typed like `tensor`."""
    return part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


_lock = threading.Lock()
_within = 0
_mode_outside = 0


@contextmanager
def unsorted_writes(device: torch.device) -> Generator[None]:
    """Within the block, writes by index on an accelerator do not sort their indices first.

    Torch's deterministic mode sorts them, with ten kernels per write, so that the last of equal
    indices wins. An engine writes to distinct places, so the result is the same. The mode belongs
    to the process: while asynchronous sampling is in this block, a learner's thread may compute
    without the mode, too.
    """
    global _within, _mode_outside
    if device.type == "cpu":
        yield
        return
    with _lock:
        if not _within:
            _mode_outside = torch.get_deterministic_debug_mode()
            torch.set_deterministic_debug_mode("default")
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                torch.set_deterministic_debug_mode(_mode_outside)
