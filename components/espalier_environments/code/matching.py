"""Similarity of a program to the gold program of its task: PPOCoder's auxiliary terms.

Programs are untrusted text. They are parsed in this process but never run here, within the bounds
of `syntax`, and only after they compiled in a sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from espalier.records import DataError, Task
from espalier.rewards.code_match import (
    CodeMatch,
    CodeParts,
    code_parts,
    data_flow_match,
    syntax_match,
)
from espalier_environments.code.inside.program import completed
from espalier_environments.code.syntax import bounded_tree
from espalier_environments.code.unit_tests import unit_tests_of

SYNTAX, DATA_FLOW = "syntax_match", "data_flow_match"
"""Names of the reward terms."""


def gold_matches(task: Task, program: str | None) -> Mapping[str, CodeMatch]:
    """Return term -> match of the program with the gold program; no match without a program.

    A program beyond the bounds of the parser has no match either.

    Raises:
        DataError: the gold program cannot be parsed; this must not become a wrong reward.
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
        found = code_parts(_tree(tests.prompt, tests.entry_point, program or ""))
    except SyntaxError:
        found = code_parts(ast.Module([], []))
    return {SYNTAX: syntax_match(found, wanted), DATA_FLOW: data_flow_match(found, wanted)}


@lru_cache(maxsize=4096)
def _parts(prompt: str, name: str, gold: str) -> CodeParts:
    return code_parts(_tree(prompt, name, gold))


def _tree(prompt: str, name: str, answer: str) -> ast.Module:
    """Return the syntax tree of the program that the sandbox composes from prompt and answer.

    Raises:
        SyntaxError: it is not a program, or beyond the bounds.
    """
    return completed(prompt, answer, name, bounded_tree, bounded_tree)
