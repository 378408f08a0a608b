"""How near an engine is to what this machine multiplies: the time in products, and their limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::_linear_pointwise")
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)
_BEST_OF = 5
_TIMED_S = 0.02


def matmul_share(play: Callable[[], object]) -> float:
    """Share of the wall time of `play` that passes in matrix products, attention's included.

    The profiler slows small operations more than products, so the share is a lower bound.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        started = time.perf_counter()
        play()
        wall_s = time.perf_counter() - started
    inside_us = sum(
        row.self_cpu_time_total
        for row in profiled.key_averages()
        if row.key in (*_PRODUCTS, *_ATTENTION)
    )
    return inside_us / 1e6 / wall_s


def matmul_limit_s(model: PreTrainedModel, *, forwarded: int, sampled: int, rows: int) -> float:
    """Seconds for the products of `forwarded` positions and `sampled` projections, `rows` at once.

    Each shape of the model's linear layers is timed alone, with warm caches: attention, norms,
    sampling and all that is not a product come on top.
    """
    head = model.get_output_embeddings()
    shapes = Counter(
        tuple(module.weight.shape)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    )
    body_s = sum(count * product_s(rows, *shape) for shape, count in shapes.items())
    head_s = product_s(rows, *head.weight.shape)
    return (forwarded * body_s + sampled * head_s) / rows


def product_s(rows: int, outputs: int, inputs: int) -> float:
    """Best seconds for [rows, inputs] times [inputs, outputs]."""
    left, right = torch.randn(rows, inputs), torch.randn(outputs, inputs).t()
    torch.mm(left, right)
    best = float("inf")
    for _ in range(_BEST_OF):
        # of this thread's processor time: what else a busy machine does is not in it
        started, count = time.thread_time(), 0
        while time.thread_time() - started < _TIMED_S:
            torch.mm(left, right)
            count += 1
        best = min(best, (time.thread_time() - started) / count)
    return best
