"""Drawing the next token of many rows at once, each under its own sampling parameters.

Each draw inverts the cumulative distribution at one uniform number. The number is a function of the
row's seed and the token's position, so other rows of the same step do not change the draw. Rows
with the same context and parameters draw from one distribution.

Axes: N rows, L distributions, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.rollout.engines.accelerator import to_device
from espalier.rollout.engines.engine import KindChoice
from espalier.rollout.engines.pages import Ints

Floats: TypeAlias = NDArray[np.float32]


class RowSampling(NamedTuple):
    """Sampling parameters of L distributions, and N draws, as in `engine.Sampling`."""

    temperatures_L: Floats
    top_p_L: Floats
    top_k_L: Ints
    uniforms_N: NDArray[np.float64]
    """Uniform numbers in [0, 1)."""
    sources_N: Ints
    """The distribution that each row draws from."""
    kind_choices: tuple[tuple[KindChoice, Ints], ...] = ()
    """Each exploration rule, with the distributions of a token that opens an action."""


class DrawnTokens(NamedTuple):
    """One token per row."""

    token_ids_N: Ints
    logprobs_N: Floats
    """Nats, under the distribution drawn from; at temperature 0, under that of temperature 1."""


@torch.inference_mode()
def draw(logits_LV: Tensor, rows: RowSampling) -> DrawnTokens:
    """Draw one token per row; `logits_LV` is overwritten."""
    device = logits_LV.device
    is_greedy_L = rows.temperatures_L == 0
    likeliest_L = _likeliest(logits_LV, is_greedy_L) if is_greedy_L.any() else None
    if (rows.temperatures_L != 1).any():
        divisors_L = np.where(is_greedy_L, np.float32(1), rows.temperatures_L)
        logits_LV.div_(torch.from_numpy(divisors_L).to(device)[:, None])
    is_cut_L = ((rows.top_p_L < 1) | (rows.top_k_L > 0)) & ~is_greedy_L
    if is_cut_L.any():
        at = torch.from_numpy(np.nonzero(is_cut_L)[0]).to(device)
        logits_LV[at] = _cut(logits_LV[at], rows.top_p_L[is_cut_L], rows.top_k_L[is_cut_L])
    probs_LV = torch.softmax(logits_LV, -1, out=logits_LV)
    for choice, chosen in rows.kind_choices:
        _mix_in(probs_LV, choice, chosen[~is_greedy_L[chosen]])
    sources_N, uniforms_N = to_device(
        (torch.from_numpy(rows.sources_N), torch.from_numpy(rows.uniforms_N)), device
    )
    if likeliest_L is None:
        token_ids_N = _inverse_cdf(probs_LV, sources_N, uniforms_N)
    else:
        token_ids_N = likeliest_L.index_select(0, sources_N)
        if not is_greedy_L.all():
            is_greedy_N = torch.from_numpy(is_greedy_L[rows.sources_N]).to(device)
            drawn_N = _inverse_cdf(probs_LV, sources_N, uniforms_N)
            token_ids_N = token_ids_N.where(is_greedy_N, drawn_N)
    return _on_host(token_ids_N, probs_LV[sources_N, token_ids_N].log_())


def uniforms(seeds_N: NDArray[np.uint64], positions_N: Ints) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1) by seed and position: SplitMix64 (Steele et al. 2014)."""
    state = seeds_N + (positions_N.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def _likeliest(logits_LV: Tensor, is_greedy_L: NDArray[np.bool_]) -> Tensor:
    """Return [L]: the likeliest token where a row is greedy, an arbitrary number elsewhere."""
    if logits_LV.device.type != "cpu":
        return logits_LV.argmax(1)
    likeliest_L = np.zeros(len(is_greedy_L), np.int64)
    likeliest_L[is_greedy_L] = logits_LV.numpy()[is_greedy_L].argmax(1)
    return torch.from_numpy(likeliest_L)


def _on_host(token_ids_N: Tensor, logprobs_N: Tensor) -> DrawnTokens:
    if token_ids_N.device.type != "cpu":
        # one transfer for both: a double holds a token id and a float32 log-prob exactly
        both_2N = torch.stack((token_ids_N.double(), logprobs_N.double())).cpu()
        token_ids_N, logprobs_N = both_2N[0].long(), both_2N[1].float()
    return DrawnTokens(token_ids_N.numpy(), logprobs_N.numpy())


def _mix_in(probs_LV: Tensor, choice: KindChoice, chosen: Ints) -> None:
    at = torch.from_numpy(chosen).to(probs_LV.device)
    mixed = probs_LV[at] * (1 - choice.epsilon)
    mixed[:, list(choice.kind_ids)] += choice.epsilon / len(choice.kind_ids)
    probs_LV[at] = mixed


def _cut(logits_NV: Tensor, top_p_N: Floats, top_k_N: Ints) -> Tensor:
    """Set all logits to -inf except the `top_k` largest, of those the fewest with mass `top_p`."""
    ordered_NV, order_NV = logits_NV.sort(dim=-1, descending=True)
    ranks_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    counts_N = np.where(top_k_N > 0, top_k_N, logits_NV.shape[1])
    kept_N, mass_N, has_top_p_N = to_device(
        (torch.from_numpy(counts_N), torch.from_numpy(top_p_N), torch.from_numpy(top_p_N < 1)),
        logits_NV.device,
    )
    ordered_NV.masked_fill_(ranks_V >= kept_N[:, None], -math.inf)
    probs_NV = ordered_NV.softmax(-1)
    before_NV = cumulative(probs_NV) - probs_NV
    is_beyond_NV = (before_NV >= mass_N[:, None]) & (ranks_V > 0)
    ordered_NV.masked_fill_(is_beyond_NV & has_top_p_N[:, None], -math.inf)
    return torch.empty_like(logits_NV).scatter_(1, order_NV, ordered_NV)


def _inverse_cdf(probs_LV: Tensor, sources_N: Tensor, uniforms_N: Tensor) -> Tensor:
    """Return the first token at which the cumulative probability exceeds the uniform number.

    It searches in two levels, blocks of tokens and then the tokens of one block: a cumulative sum
    over 256 x 2048 numbers takes 0.5 ms, the sums of blocks a tenth of that. Sums are in double
    precision, or of whole numbers, so that a token of probability 1e-8 can be drawn; one of
    probability 0 cannot.
    """
    distributions, vocabulary = probs_LV.shape
    blocks_LBK = probs_LV.view(distributions, -1, math.gcd(vocabulary, 64))
    mass_NB = blocks_LBK.sum(-1).index_select(0, sources_N)
    block_N1, rest_N1 = _first_above(mass_NB, uniforms_N[:, None])
    numbers_N = sources_N * mass_NB.shape[1] + block_N1[:, 0]
    inside_NK = blocks_LBK.flatten(0, 1).index_select(0, numbers_N)
    place_N1, _ = _first_above(inside_NK, rest_N1)
    return (block_N1 * blocks_LBK.shape[2] + place_N1)[:, 0]


class _Found(NamedTuple):
    place_N1: Tensor
    rest_N1: Tensor
    """The target minus the sum of all earlier places."""


def _first_above(weights_NK: Tensor, targets_N1: Tensor) -> _Found:
    if weights_NK.device.type == "cpu":
        sums_NK = weights_NK.cumsum(-1, dtype=torch.float64)
        # rounding may leave the whole sum slightly below the target
        below_N1 = torch.nextafter(sums_NK[:, -1:], sums_NK.new_zeros(1))
    else:
        weights_NK = _in_units(weights_NK)
        sums_NK = weights_NK.cumsum(-1)
        below_N1 = sums_NK[:, -1:] - 1
        if targets_N1.is_floating_point():
            targets_N1 = (targets_N1 * _UNITS).long()
    targets_N1 = targets_N1.minimum(below_N1)
    place_N1 = torch.searchsorted(sums_NK, targets_N1, right=True)
    before_N1 = sums_NK.gather(1, place_N1) - weights_NK.gather(1, place_N1)
    return _Found(place_N1, (targets_N1 - before_N1).clamp_min_(0))


_UNITS = 2.0**60
"""Number of units that stand for the probability 1."""


def _in_units(probs_NK: Tensor) -> Tensor:
    """Return the probabilities as whole numbers of units; at least 1 for each that is not 0."""
    return probs_NK.double().mul_(_UNITS).ceil_().long()


def cumulative(probs_NK: Tensor) -> Tensor:
    """Return cumulative probabilities, in the format of `probs_NK`.

    An accelerator adds up whole numbers, whose sums do not depend on their order: in its
    deterministic mode torch refuses cumulative sums of other numbers there, or takes memory for K *
    K of them. A sum in no fixed order might also give a token of probability 0 a share.
    """
    if probs_NK.device.type == "cpu":
        return probs_NK.cumsum(-1)
    return _in_units(probs_NK).cumsum(-1).double().div_(_UNITS).to(probs_NK.dtype)
