"""Rewards: verifiers of answers and patches, verdicts, and ReTool's reward for a verdict."""

from espalier.rewards.answers import (
    exact_match,
    fold_accents,
    normalize_answer,
    occurs_in,
    token_f1,
)
from espalier.rewards.bfcl import (
    PYTHON_TYPES,
    Document,
    GoldCall,
    WrittenCall,
    calls_fault,
)
from espalier.rewards.code_match import (
    CodeMatch,
    CodeParts,
    code_parts,
    data_flow_match,
    syntax_match,
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
from espalier.rewards.result_rows import intercode_sql_reward, rows_match
from espalier.rewards.search_r1 import (
    search_r1_em,
    search_r1_with_form,
    transcript_answer,
    transcript_form,
)
from espalier.rewards.swe_rl import (
    BAD_FORMAT,
    BlockError,
    PatchLikeness,
    SearchReplace,
    changed_files,
    content_likeness,
    patch_likeness,
    search_replace_blocks,
    swe_rl_reward,
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
from espalier.rewards.webshop import (
    CATEGORY_SEPARATOR,
    ShopGoal,
    ShopProduct,
    ShopScore,
    first_color,
    token_set_ratio,
    webshop_score,
)

__all__ = [
    "BAD_FORMAT",
    "CATEGORY_SEPARATOR",
    "OUTCOME_SPANS",
    "PYTHON_TYPES",
    "BlockError",
    "CodeMatch",
    "CodeParts",
    "Document",
    "GoldCall",
    "HotpotScores",
    "MathJudge",
    "MathJudgeError",
    "PatchLikeness",
    "SearchReplace",
    "ShopGoal",
    "ShopProduct",
    "ShopScore",
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
    "changed_files",
    "code_parts",
    "compile_term",
    "content_likeness",
    "dapo_reward",
    "data_flow_match",
    "exact_match",
    "final_answer",
    "first_color",
    "fold_accents",
    "hotpot_scores",
    "intercode_sql_reward",
    "is_right",
    "last_boxed",
    "math_equivalent",
    "normalize_answer",
    "occurs_in",
    "patch_likeness",
    "retool_reward",
    "rows_match",
    "search_r1_em",
    "search_r1_with_form",
    "search_replace_blocks",
    "supporting_facts",
    "swe_rl_reward",
    "syntax_match",
    "thinks_once",
    "token_f1",
    "token_set_ratio",
    "toolrl_score",
    "transcript_answer",
    "transcript_form",
    "unit_test_reward",
    "webshop_score",
]
