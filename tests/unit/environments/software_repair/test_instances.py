"""SWE-bench's instances and snapshots: what is read, and what is refused by name."""

import json
import re
import tarfile
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier_environments.software_repair.diffs import diff_of
from espalier_environments.software_repair.instances import load_snapshot
from espalier_environments.software_repair.judging import answered_changes
from espalier_environments.software_repair.protected import is_protected
from espalier_environments.software_repair.worktree import Worktree

PUBLIC = Path(__file__).resolve().parents[5] / "shared" / "data" / "swe_bench" / "instances.json"
WRONG = {"pkg/__init__.py": "", "pkg/area.py": "def area(r):\n    return 3 * r\n"}
RIGHT = "def area(r):\n    return 3 * r * r\n"
TESTS = (
    "import unittest\nfrom pkg.area import area\n\n\nclass AreaTests(unittest.TestCase):\n"
    "    def test_two(self):\n        self.assertEqual(area(2), 12)\n\n"
    "    def test_one(self):\n        self.assertEqual(area(1), 3)\n"
)


def row(**changed):
    return {
        "instance_id": "made__pkg-1",
        "repo": "made/pkg",
        "base_commit": "0" * 40,
        "problem_statement": "area(2) is 6",
        "hints_text": "",
        "patch": diff_of(WRONG, {**WRONG, "pkg/area.py": RIGHT}),
        "test_patch": diff_of({}, {"tests/test_area.py": TESTS}),
        "FAIL_TO_PASS": json.dumps(["tests/test_area.py::AreaTests::test_two"]),
        "PASS_TO_PASS": ["test_one (tests.test_area.AreaTests)"],
        **changed,
    }


def snapshot(folder, files=None):
    for path, text in (WRONG if files is None else files).items():
        where = folder / "made__pkg-1" / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)
    return folder


def family(**settings):
    section = {"name": "software_repair", "shell": False, "sandbox": {"packages": []}, **settings}
    return family_of(Profile.model_validate({"environment": section}))


def rows_file(tmp_path, *rows):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.skipif(not PUBLIC.is_file(), reason=f"{PUBLIC} is not here")
def test_public_golds_have_a_reward_of_one():
    own = family(outcome="swe_rl", answer="diff", sandbox={"packages": [], "size": 1})
    tasks = own.read_benchmark(PUBLIC)
    assert len(tasks) == 6
    for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
        assert own.verify(task, task.verifier.gold[0]) == 1
        assert own.verify(task, other.verifier.gold[0]) < 1
        assert own.verify(task, "no patch") == -1


def test_a_row_that_is_no_instance_is_named(tmp_path):
    own = family(snapshots=snapshot(tmp_path))
    for spoilt in ({"patch": "none"}, {"FAIL_TO_PASS": "["}, {"instance_id": "../up"}):
        with pytest.raises(DataError, match="row 1"):
            own.read_benchmark(rows_file(tmp_path, row(**spoilt)))


def test_a_snapshot_is_of_its_commit_and_without_the_fix(tmp_path):
    path = rows_file(tmp_path, row())
    other = snapshot(tmp_path / "b", {"pkg/area.py": "def area(r):\n    return 7\n"})
    fixed = snapshot(tmp_path / "c", {**WRONG, "old/area.py": RIGHT})
    for settings, said in (
        ({}, "environment.snapshots"),
        ({"snapshots": tmp_path}, "made__pkg-1"),
        ({"snapshots": other}, "commit"),
        ({"snapshots": fixed}, "old/area.py"),
    ):
        with pytest.raises(DataError, match=re.escape(said)):
            family(**settings).read_benchmark(path)


def test_archives_are_read_without_root_and_checkouts_without_links(tmp_path):
    folder = snapshot(tmp_path / "a", {**WRONG, ".git/HEAD": "x", "pkg/__pycache__/a.pyc": "x"})
    (folder / "made__pkg-1" / "link").symlink_to("/etc/passwd")
    assert load_snapshot(folder, "made__pkg-1") == WRONG
    whole = snapshot(tmp_path / "b")
    with tarfile.open(tmp_path / "made__pkg-1.tar.gz", "w:gz") as archive:
        archive.add(whole / "made__pkg-1", arcname="pkg-main")
    assert load_snapshot(tmp_path, "made__pkg-1") == WRONG


def test_a_test_that_no_file_has_refuses_its_instance(tmp_path):
    own = family(snapshots=snapshot(tmp_path))
    for name in ("[100%]", "A sentence of no test.", "test_three"):
        path = rows_file(tmp_path, row(PASS_TO_PASS=["test_one", name]))
        with pytest.raises(DataError, match=re.escape(f"made__pkg-1: no test file has {name!r}")):
            own.read_benchmark(path)


@pytest.mark.parametrize(
    "path",
    [
        "pkg/conftest.py", "sitecustomize.py", "a.pth", "unittest/__init__.py", "src/json.py",
        "pytest.py", "tests/test_area.py",
    ],
)  # fmt: skip
def test_what_could_change_how_tests_run_does_not_count(path):
    assert is_protected(path, WRONG)
    assert not any(is_protected(one, WRONG) for one in ("pkg/area.py", "pkg/json.py", "new.py"))


def changes(path, search, **settings):
    own = family(answer="search_replace", **settings)
    block = f"```\n### {path}\n<<<<<<< SEARCH\n{search}=======\nx\n>>>>>>> REPLACE\n```"
    return answered_changes(own.settings, WRONG, Worktree(WRONG), block)


@pytest.mark.parametrize("search", ["", "\n"])
def test_an_empty_search_changes_no_file_with_text(search):
    assert changes("pkg/area.py", search) is None
    assert changes("pkg/new.py", search) == {"pkg/new.py": "x"}
    assert changes("pkg/__init__.py", search) == {"pkg/__init__.py": "x"}
    assert changes("pkg/area.py", "    return 3 * r\n") == {"pkg/area.py": "def area(r):\nx\n"}
    upstream = changes("pkg/area.py", search, outcome="swe_rl")
    assert upstream == {"pkg/area.py": "xdef area(r):\nx    return 3 * r\nx"}
