"""The shape of the code: how modules are named, what is never written."""

import ast
import re
from pathlib import Path

import pytest

from espalier.config import load_profile

ROOT = Path(__file__).parents[3]
DRAWERS = re.compile(r"(utils?|common|misc|helper\w*|base)\.py")
TOP_FOLDERS = ("components", "docs", "pipelines", "tests", "k8s", "sandbox-images", ".ci")
TEXTS = (".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".json", ".cfg", ".jinja", ".sh", "")
# in pieces, because this file is searched as well
INDEX_ADDRESSES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("anaconda", "org"),
        ("pypi", "python", "org"),
    )
)

SOURCES = sorted(path for top in ("components", "pipelines") for path in (ROOT / top).rglob("*.py"))
ROOMS = sorted((ROOT / "components").rglob("__init__.py"))
PROFILES = sorted((ROOT / "pipelines" / "profiles").glob("*.toml"))


def _named(path):
    return path.relative_to(ROOT).as_posix()


def _parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _swallows(handler):
    """Whether an except clause catches everything and does not raise it again as it was."""
    names = {getattr(part, "id", None) for part in ast.walk(handler.type or ast.Name("Exception"))}
    last = handler.body[-1]
    again = isinstance(last, ast.Raise) and last.exc is None
    return bool(names & {"Exception", "BaseException"}) and not again


def _public_names(path, tree):
    """What a room offers: names taken from its own modules, and what its `__init__` defines."""
    room = ".".join(path.parent.relative_to(ROOT / "components").parts)
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{room}."):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if not name.startswith("_")}


def _listed_names(tree):
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def _texts():
    found = [path for path in ROOT.iterdir() if path.is_file()]
    found += [path for top in TOP_FOLDERS for path in (ROOT / top).rglob("*") if path.is_file()]
    return [path for path in found if path.suffix in TEXTS and "egg-info" not in str(path)]


def test_no_module_is_a_drawer():
    assert [_named(path) for path in SOURCES if DRAWERS.fullmatch(path.name)] == []


def test_no_error_is_swallowed():
    broad = [
        f"{_named(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ExceptHandler) and _swallows(node)
    ]
    assert broad == []


@pytest.mark.parametrize(
    ("clause", "swallowed"),
    [
        ("except Exception: pass", True),
        ("except: pass", True),
        ("except (ValueError, BaseException) as e: print(e)", True),
        ("except BaseException: raise", False),
        ("except ValueError: pass", False),
    ],
)
def test_a_broad_except_is_told_from_one_that_raises_again(clause, swallowed):
    tree = ast.parse(f"try:\n    pass\n{clause}\n")
    assert _swallows(tree.body[0].handlers[0]) is swallowed


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XXX|NotImplemented" + r"Error)\b")
    left = [_named(p) for p in SOURCES if marks.search(p.read_text(encoding="utf-8"))]
    assert left == []


@pytest.mark.parametrize("path", ROOMS, ids=_named)
def test_a_room_lists_what_it_offers(path):
    tree = _parsed(path)
    listed = _listed_names(tree)
    assert len(listed) == len(set(listed))
    assert set(listed) == _public_names(path, tree)


@pytest.mark.parametrize("path", PROFILES, ids=_named)
def test_every_profile_of_the_repository_parses(path):
    assert load_profile(path).name == path.stem


def test_no_text_names_the_address_of_a_package_index():
    naming = [
        f"{_named(path)}: {address}"
        for path in _texts()
        for address in INDEX_ADDRESSES
        if address in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert naming == []
