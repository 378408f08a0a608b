"""Rewards: verifiers of answers, the verdict on an answer, and ReTool's reward of a verdict."""

from espalier.rewards.answers import exact_match, fold_accents, normalize_answer, token_f1
from espalier.rewards.hotpot import HotpotScores, hotpot_scores
from espalier.rewards.math_equivalence import (
    MathJudge,
    MathJudgeError,
    final_answer,
    last_boxed,
    math_equivalent,
)
from espalier.rewards.verdicts import is_right, retool_reward

__all__ = [
    "HotpotScores",
    "MathJudge",
    "MathJudgeError",
    "exact_match",
    "final_answer",
    "fold_accents",
    "hotpot_scores",
    "is_right",
    "last_boxed",
    "math_equivalent",
    "normalize_answer",
    "retool_reward",
    "token_f1",
]
