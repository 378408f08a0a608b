"""Paths, modules, profile keys and targets that a page names are there."""

import importlib
import re
import tomllib
import typing

import pytest

from docs.reference import FAMILIES, models_in
from espalier.config import Profile
from espalier.config.environment import family_class
from tests.unit.docs.fences import FENCES, PAGES, ROOT, has_test

TOPS = ("components", "docs", "examples", "k8s", "pipelines", "sandbox-images", "tests", ".ci")
CODE = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"(?<![\w/.-])espalier(?:\.[A-Za-z_]\w*)+")
NO_MODULES = {"espalier.dev", "espalier.serving_reason", "espalier.times", "espalier.viewer"}
"""Labels and tags begin alike."""
MADE = {f.about for f in FENCES if f.says == "file"}
"""Files that a page tells the reader to write."""


def spans(page):
    """Code in running text, fenced blocks apart."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return CODE.findall(prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_that_a_page_names_are_there(page):
    tops = [top for top in TOPS if (ROOT / top).exists()]
    for span in spans(page):
        path = span.rstrip("/")
        if path.split("/")[0] in tops and re.fullmatch(r"[\w./-]+", path):
            assert (ROOT / path).exists() or path in MADE, span
        if re.fullmatch(r"\w+\.py", span) and span not in {"utils.py", "common.py", "helpers.py"}:
            assert span in MADE or any(ROOT.glob(f"*/**/{span}")), span


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_of_a_page_can_be_imported(page):
    for name in set(DOTTED.findall(page.read_text("utf-8"))):
        if name in NO_MODULES or any(
            path.endswith(name.replace(".", "/") + ".py") for path in MADE
        ):
            continue
        assert found(name), name


def found(dotted):
    """Whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            value = getattr(value, name, None)
        return value is not None
    return False


def named_tests(page):
    """Pairs of a file and a test in it; one without a path is in the file named before."""
    path = ""
    for span in spans(page):
        if test := re.fullmatch(r"(tests/[\w/]+\.py)?::(\w+)", span):
            path = test[1] or path
            yield path, test[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page):
    for path, name in named_tests(page):
        assert has_test(path, name), f"{path}::{name}"


def test_every_trouble_of_others_names_its_test():
    page = ROOT / "docs" / "field-troubles.md"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text("utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| trouble", "| ---", "| **"))
    ]
    assert len(rows) >= 44
    for _, source, seen, tests in rows:
        assert re.match(r"[\w.-]+/[\w.-]+#\d+", source), source
        assert seen, source
        assert re.match(r"`?tests/[\w/]+\.py", tests), source
    assert len(list(named_tests(page))) > 60


def test_a_test_that_is_nowhere_is_noticed():
    here = "tests/unit/docs/test_names.py"
    assert has_test(here, "test_a_test_that_is_nowhere_is_noticed")
    assert not has_test(here, "test_nothing")
    assert not has_test("tests/unit/docs/test_nowhere.py", "test_nothing")


def test_a_name_that_is_nowhere_is_noticed():
    assert found("espalier.config.Profile")
    assert not found("espalier.config.Profiles")
    assert not found("espalier.nowhere")


def is_key(dotted, models=(Profile,)):
    """Whether a dotted key is one of the profile, whichever rule is chosen on the way."""
    name, _, rest = dotted.partition(".")
    for model in models:
        if name in model.model_fields:
            below = tuple(models_in(model.model_fields[name].annotation))
            if dotted == "environment" or name == "environment":
                below = tuple(family_class(family).config for family in FAMILIES)
            plain = typing.get_origin(model.model_fields[name].annotation) is dict
            if not rest or plain or (below and is_key(rest, below)):
                return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_that_a_page_names_are_keys(page):
    for span in spans(page):
        key = span.partition(" = ")[0]
        if (
            re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", key)
            and key.split(".")[0] in Profile.model_fields
        ):
            assert is_key(key), span


def test_a_key_that_is_none_is_noticed():
    assert is_key("training.algorithm.loss.clip_high")
    assert is_key("environment.sandbox.memory_mb")
    assert not is_key("training.group_sizes")
    assert not is_key("training.steps.more")


def test_the_map_of_the_code_has_the_layers_in_order():
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = contributing.partition("| room | what it holds |")[2].partition("\n\n")[0]
    rows = [set(CODE.findall(row.split("|")[1])) for row in table.splitlines()[2:]]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    assert rows == [set(layer.split(" | ")) for layer in layers]
