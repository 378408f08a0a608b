"""Combinations of rules that cannot work; refused, with the reason, when a profile is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from espalier.algorithms.filters import GroupFilter
from espalier.algorithms.losses import Reinforce
from espalier.algorithms.material import Everything, PreferencePairs, Successes
from espalier.algorithms.off_policy import ImportanceWeights, VTrace

if TYPE_CHECKING:
    from espalier.algorithms.algorithm import Algorithm

_KNOWN_WHEN_SAMPLED = frozenset(
    {"turns_BT", "total_tokens_B", "reward_terms_BK", "baseline_rewards_B"}
)
"""Fields of a `CreditBatch` that are known without scoring rows by a model."""


def refuse_impossible(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose parts contradict each other.

    Raises:
        ValueError: every contradiction, with its reason and a way out.
    """
    faults = [
        *_credit_faults(algorithm),
        *_material_faults(algorithm),
        *_loss_faults(algorithm),
        *_correction_faults(algorithm),
        *_filter_faults(algorithm),
    ]
    if faults:
        raise ValueError("; ".join(faults))


def _credit_faults(algorithm: Algorithm) -> Iterator[str]:
    advantage, critic = algorithm.advantage, algorithm.critic
    reads_values = advantage is not None and "values_BT" in advantage.needs
    if advantage is not None and reads_values and critic is None:
        yield (
            f'advantage "{advantage.name}" is measured against a critic and there is none: '
            'set critic = {}, or choose advantage = {name = "grpo"}, which compares groups'
        )
    if critic is not None and not reads_values:
        named = f'advantage "{advantage.name}"' if advantage else "this material"
        yield (
            f"{named} never reads a critic's values, which would be trained for nothing: "
            'set critic = "none", or choose advantage = {name = "gae"}'
        )


def _material_faults(algorithm: Algorithm) -> Iterator[str]:
    material, advantage, loss = algorithm.material, algorithm.advantage, algorithm.loss
    wants_pairs = "pairs_P2" in loss.needs
    if isinstance(material, Everything) and advantage is None:
        yield 'nothing says which trajectories were good: set advantage, such as {name = "grpo"}'
    if not isinstance(material, Everything) and advantage is not None:
        yield (
            f'material "{material.name}" says itself what is good; advantage '
            f'"{advantage.name}" would never be read: set advantage = "none"'
        )
    if wants_pairs and not isinstance(material, PreferencePairs):
        yield (
            f'loss "{loss.name}" compares preference pairs and material "{material.name}" makes '
            'none: set material = {name = "pairs"}'
        )
    if isinstance(material, PreferencePairs) and not wants_pairs:
        yield f'loss "{loss.name}" does not compare pairs: set loss = {{name = "dpo"}}'
    if isinstance(material, Successes) and not isinstance(loss, Reinforce):
        yield (
            f'successes are imitated, whatever the ratio: loss "{loss.name}" would clip that; '
            'set loss = {name = "reinforce"}, the likelihood'
        )


def _loss_faults(algorithm: Algorithm) -> Iterator[str]:
    loss, kl = algorithm.loss, algorithm.kl
    fixed, asked = loss.fixed_aggregation, algorithm.aggregation
    if fixed is not None and asked not in (None, fixed):
        yield (
            f'the formula of loss "{loss.name}" is made of the mean "{fixed}"; '
            f'aggregation = "{asked}" has no meaning there: leave it out'
        )
    if kl is not None and kl.place == "reward" and algorithm.advantage is None:
        yield (
            "a penalty in the reward acts through advantages and there are none: set kl.place = "
            '"loss", or kl = "none"'
        )
    if kl is not None and kl.importance_corrected and isinstance(loss, Reinforce):
        yield (
            f'loss "{loss.name}" has no importance ratio, so the penalty must not be corrected '
            "by one: set kl.importance_corrected = false"
        )


def _correction_faults(algorithm: Algorithm) -> Iterator[str]:
    loss, proximal = algorithm.loss, algorithm.proximal
    for rule in algorithm.off_policy:
        if not rule.gives_weights:
            continue
        if not loss.takes_weights:
            yield (
                f'loss "{loss.name}" corrects for the sampler itself; weights of off_policy '
                f'"{rule.name}" would count twice: take the rule out'
            )
        elif (
            isinstance(rule, ImportanceWeights)
            and proximal == "behavior"
            and not isinstance(loss, Reinforce)
        ):
            yield (
                f'the ratio of loss "{loss.name}" to the behaviour policy is the correction that '
                f'off_policy "{rule.name}" would make a second time: set proximal = "recomputed"'
            )
        elif isinstance(algorithm.advantage, VTrace):
            yield (
                'advantage "v_trace" has the truncated ratio inside; weights of off_policy '
                f'"{rule.name}" would count it twice: take the rule out'
            )
    if algorithm.advantage is not None and proximal == "behavior":
        missing = algorithm.advantage.needs & {"proximal_logprobs_BT"}
        if missing:
            yield (
                f'advantage "{algorithm.advantage.name}" compares the sampler with the trainer: '
                'set proximal = "recomputed"'
            )


def _filter_faults(algorithm: Algorithm) -> Iterator[str]:
    advantage = algorithm.advantage
    computable = advantage is not None and advantage.needs <= _KNOWN_WHEN_SAMPLED
    for rule in algorithm.filters:
        if isinstance(rule, GroupFilter) and rule.reads == "advantages" and not computable:
            yield (
                f'filter "{rule.name}" judges groups by their advantages, before anything is '
                "scored by a model, which these need: choose a filter of rewards, such as "
                '{name = "zero_variance"}'
            )
