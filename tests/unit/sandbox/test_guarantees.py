"""The table of guarantees, and the tests that it says show them."""

import ast
from pathlib import Path

import pytest

import espalier.sandbox

ROOT = Path(__file__).parents[3]
TABLE = Path(espalier.sandbox.__file__).with_name("README.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| what")
]
TESTS = {
    node.name
    for path in (ROOT / "tests/integration/sandbox").glob("test_*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


def test_the_table_was_found():
    assert len(ROWS) >= 12


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_guarantee_covers_each_backend_and_names_its_test(row):
    what, *backends, test = row
    assert len(backends) == 4
    assert all(backends), f"{what}: a backend without a word"
    assert test in TESTS, f"{what}: no such test"
