"""The speed of the updates: tokens per second, and the device's arithmetic that they use."""

from __future__ import annotations

import time

import torch

from espalier.policy.hardware import Hardware
from espalier.training.parallel import Processes
from espalier.training.rl.loop import RlLoop
from espalier.training.rl.policy_gradient import Figures

_FLOP = 6
"""Operations per parameter and position, forward and backward (Kaplan et al. 2020,
arXiv:2001.08361, sec. 2.1)."""
_CPU_SIDE, _ACCELERATOR_SIDE = 1024, 4096
"""Side of the square matrices: large enough that the product takes nearly all the time, 12 MiB on a
CPU."""
_MEASURED_S = 0.2


def update_speed(loop: RlLoop, hardware: Hardware, processes: Processes) -> Figures:
    """Return figures of the updates since the last resume; {} without updates.

    `update_matmul_share` is the arithmetic of the policy's own passes, 6 operations per parameter
    and position, relative to the device's peak over the whole time of the updates: scoring for a
    reference, a critic, the loss and the optimizer lower it.
    """
    updating = loop.updating
    if not updating.tokens:
        return {}
    parameters = sum(weight.numel() for weight in loop.parts.models.policy.model.parameters())
    needed = _FLOP * parameters * updating.positions_per_s
    return {
        "update_s": updating.seconds,
        "update_tokens": updating.tokens,
        "update_positions": updating.positions,
        "update_tokens_per_s": updating.tokens_per_s,
        "update_matmul_share": needed / (processes.count * matmul_peak(hardware)),
    }


def matmul_peak(hardware: Hardware) -> float:
    """Return operations per second of a large matrix product in training's number format."""
    is_cpu = hardware.device.type == "cpu"
    side = _CPU_SIDE if is_cpu else _ACCELERATOR_SIDE
    generator = torch.Generator(hardware.device).manual_seed(0)
    matrix = torch.rand(side, side, generator=generator, device=hardware.device)
    matrix = matrix.to(hardware.autocast or matrix.dtype)
    best_s = float("inf")
    with torch.no_grad():
        _timed(matrix, is_cpu=is_cpu)  # the first one includes one-time work
        until = time.perf_counter() + _MEASURED_S
        while time.perf_counter() < until:
            best_s = min(best_s, _timed(matrix, is_cpu=is_cpu))
    return 2 * side**3 / best_s


def _timed(matrix: torch.Tensor, *, is_cpu: bool) -> float:
    started = time.perf_counter()
    torch.mm(matrix, matrix)
    if not is_cpu:
        torch.accelerator.synchronize()
    return time.perf_counter() - started
