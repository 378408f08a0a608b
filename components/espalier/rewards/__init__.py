"""Rewards: verifiers of answers, the verdict on an answer, and ReTool's reward of a verdict."""

from espalier.rewards.answers import exact_match, fold_accents, normalize_answer, token_f1
from espalier.rewards.bfcl import (
    PYTHON_TYPES,
    Document,
    GoldCall,
    WrittenCall,
    calls_fault,
)
from espalier.rewards.final_lines import after_thinking, answer_line, dapo_reward, thinks_once
from espalier.rewards.hotpot import HotpotScores, hotpot_scores, supporting_facts
from espalier.rewards.math_equivalence import (
    MathJudge,
    MathJudgeError,
    final_answer,
    last_boxed,
    math_equivalent,
)
from espalier.rewards.search_r1 import (
    search_r1_em,
    search_r1_with_form,
    transcript_answer,
    transcript_form,
)
from espalier.rewards.toolrl import ToolRlScore, called_in, calls_correctness, toolrl_score
from espalier.rewards.unit_tests import (
    OUTCOME_SPANS,
    TestReport,
    UnitTestRule,
    Verdict,
    compile_term,
    unit_test_reward,
)
from espalier.rewards.verdicts import is_right, retool_reward

__all__ = [
    "OUTCOME_SPANS",
    "PYTHON_TYPES",
    "Document",
    "GoldCall",
    "HotpotScores",
    "MathJudge",
    "MathJudgeError",
    "TestReport",
    "ToolRlScore",
    "UnitTestRule",
    "Verdict",
    "WrittenCall",
    "after_thinking",
    "answer_line",
    "called_in",
    "calls_correctness",
    "calls_fault",
    "compile_term",
    "dapo_reward",
    "exact_match",
    "final_answer",
    "fold_accents",
    "hotpot_scores",
    "is_right",
    "last_boxed",
    "math_equivalent",
    "normalize_answer",
    "retool_reward",
    "search_r1_em",
    "search_r1_with_form",
    "supporting_facts",
    "thinks_once",
    "token_f1",
    "toolrl_score",
    "transcript_answer",
    "transcript_form",
    "unit_test_reward",
]
