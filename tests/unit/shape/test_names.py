"""Names of tests: a sentence of ten words at most; the rest is in the assertion's message."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_WORDS = 10
FILES = sorted((ROOT / "tests").rglob("*.py"))


def long_names(source):
    """Names of the test functions of a source that have more words than that."""
    names = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    return [name for name in names if len(name.split("_")) - 1 > MOST_WORDS]


@pytest.mark.parametrize(("words", "is_long"), [(10, False), (11, True)])
def test_a_name_may_have_ten_words(words, is_long):
    name = "_".join(["test", *["word"] * words])
    assert long_names(f"def {name}(): ...\n") == [name] * is_long
    assert long_names(f"async def {name}(): ...\ndef other_{name}(): ...\n") == [name] * is_long


def test_no_name_of_a_test_is_longer():
    found = [
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in FILES
        for name in long_names(path.read_text(encoding="utf-8"))
    ]
    assert found == []
