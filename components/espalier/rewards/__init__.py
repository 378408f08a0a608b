"""Rewards: what an episode is worth, in named terms."""

from espalier.rewards.answers import exact_match, fold_accents, normalize_answer, token_f1

__all__ = ["exact_match", "fold_accents", "normalize_answer", "token_f1"]
