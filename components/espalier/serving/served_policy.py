"""The loaded policy that an endpoint serves; this module imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from espalier.config import HardwareConfig, ServingConfig
from espalier.policy.loading import load_policy_for_sampling
from espalier.records import PolicyError
from espalier.rollout.engines.engine import Engine
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.serving.source import Source


class PolicyStops:
    """Stop rule that ends an answer at stop tokens of the generation config and tokenizer."""

    stop_texts: tuple[str, ...] = ()

    def __init__(self, stop_ids: frozenset[int]) -> None:
        self.stop_ids = stop_ids

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        """Whether the last token ends the action."""
        return action_ids[-1] in self.stop_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy with its engine, and the limits that requests are checked against."""

    source: Source
    tokenizer: PreTrainedTokenizerBase
    engine: Engine
    vocabulary: int
    context: int
    """Tokens of a prompt and its answer."""
    dialect: str = "auto"
    """How it writes calls; "auto" takes what its chat template teaches."""


def open_policy(
    directory: Path,
    source: Source,
    config: ServingConfig,
    dialect: str,
    hardware: HardwareConfig,
) -> ServedPolicy:
    """Load a policy directory behind an engine in this process.

    Raises:
        PolicyError: not a policy directory, or one without a chat template.
    """
    policy = load_policy_for_sampling(directory, hardware)
    if not policy.tokenizer.chat_template:
        raise PolicyError(
            f"{directory}: its tokenizer has no chat template, so it cannot answer chats. Set one "
            "in tokenizer_config.json, or take the instruction-tuned model of its family."
        )
    text_config = policy.model.config.get_text_config()
    built_for = getattr(text_config, "max_position_embeddings", None)

    # the stop tokens of `generate` in transformers, and the tokenizer's own
    generation = getattr(policy.model, "generation_config", None)
    named = getattr(generation, "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    stop_ids = (*ids, policy.tokenizer.eos_token_id)
    stops = PolicyStops(frozenset(i for i in stop_ids if isinstance(i, int)))
    return ServedPolicy(
        source=source,
        tokenizer=policy.tokenizer,
        engine=lockstep_engine(policy.model, stops, max_rows=config.rows, hardware=hardware),
        vocabulary=text_config.vocab_size,
        context=min(built_for or config.max_context, config.max_context),
        dialect=dialect,
    )
