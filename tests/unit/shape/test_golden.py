"""The golden cases are part of the repository, and whole."""

import re

import pytest

from tests.golden_cases import GOLDEN, golden_cases

TOPICS = re.findall(r"^## (\w+)\.json$", (GOLDEN / "README.md").read_text(), re.MULTILINE)


def test_the_golden_readme_describes_every_file():
    assert sorted(TOPICS) == sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("topic", TOPICS)
def test_every_golden_file_holds_named_cases(topic):
    names = [case["name"] for case in golden_cases(topic)]
    assert names
    assert len(names) == len(set(names))


def test_a_missing_golden_file_is_an_error():
    with pytest.raises(FileNotFoundError, match="part of the repository"):
        golden_cases("nothing")
