"""What a program shares with the gold program of its task: PPOCoder's auxiliary terms.

Programs are hostile text that is parsed in this process, and never run here: within the bounds of
`syntax`, and after they compiled in a sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from espalier.environments.code.inside.program import completed
from espalier.environments.code.syntax import bounded_tree
from espalier.environments.code.unit_tests import UnitTests, unit_tests_of
from espalier.records import DataError, Task
from espalier.rewards import CodeMatch, CodeParts, code_parts, data_flow_match, syntax_match

SYNTAX, DATA_FLOW = "syntax_match", "data_flow_match"
"""Names of the terms."""


def gold_matches(task: Task, program: str | None) -> Mapping[str, CodeMatch]:
    """Term -> what of the gold program a program has; nothing of it without a program.

    A program that is beyond the bounds of what is parsed has nothing of it either.

    Raises:
        DataError: the gold program cannot be compared with: no reward is better than a wrong one.
    """
    tests, gold = unit_tests_of(task), task.verifier.gold[0]
    try:
        wanted = _parts(tests.prompt, tests.entry_point, gold)
    except SyntaxError as error:
        raise DataError(
            f"task {task.task_id}: its gold program cannot be parsed ({error}), and "
            "environment.syntax_weight and data_flow_weight compare with it; set both to 0"
        ) from error
    try:
        found = _read(tests, program or "")
    except SyntaxError:
        found = code_parts(ast.Module([], []))
    return {SYNTAX: syntax_match(found, wanted), DATA_FLOW: data_flow_match(found, wanted)}


def _read(tests: UnitTests, program: str) -> CodeParts:
    return code_parts(_tree(tests.prompt, tests.entry_point, program))


@lru_cache(maxsize=4096)
def _parts(prompt: str, name: str, gold: str) -> CodeParts:
    return code_parts(_tree(prompt, name, gold))


def _tree(prompt: str, name: str, answer: str) -> ast.Module:
    """The tree of a program, as the sandbox composes it of the prompt and an answer.

    Raises:
        SyntaxError: it is none, or beyond the bounds.
    """
    return completed(prompt, answer, name, bounded_tree, bounded_tree)
