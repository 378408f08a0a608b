"""SWE-bench's instances and snapshots: what is read, and what is refused by name."""

import json
import tarfile
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier_environments.software_repair.diffs import diff_of
from espalier_environments.software_repair.instances import load_snapshot
from espalier_environments.software_repair.protected import is_protected
from espalier_environments.software_repair.test_runner import split_test

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


def test_a_snapshot_has_to_be_there_and_of_its_commit(tmp_path):
    path = rows_file(tmp_path, row())
    with pytest.raises(DataError, match=r"environment\.snapshots"):
        family().read_benchmark(path)
    with pytest.raises(DataError, match="made__pkg-1"):
        family(snapshots=tmp_path).read_benchmark(path)
    other = snapshot(tmp_path / "b", {"pkg/area.py": "def area(r):\n    return 7\n"})
    with pytest.raises(DataError, match="commit"):
        family(snapshots=other).read_benchmark(path)


def test_a_fixed_file_beside_the_snapshot_is_refused(tmp_path):
    own = family(snapshots=snapshot(tmp_path, {**WRONG, "old/area.py": RIGHT}))
    with pytest.raises(DataError, match=r"old/area\.py"):
        own.read_benchmark(rows_file(tmp_path, row()))


def test_history_and_links_of_a_checkout_are_left_out(tmp_path):
    snapshot(tmp_path, {**WRONG, ".git/HEAD": "x", "pkg/__pycache__/a.pyc": "x"})
    (tmp_path / "made__pkg-1" / "link").symlink_to("/etc/passwd")
    assert load_snapshot(tmp_path, "made__pkg-1") == WRONG


def test_an_archive_is_read_without_its_root(tmp_path):
    folder = snapshot(tmp_path / "a")
    with tarfile.open(tmp_path / "made__pkg-1.tar.gz", "w:gz") as archive:
        archive.add(folder / "made__pkg-1", arcname="pkg-main")
    assert load_snapshot(tmp_path, "made__pkg-1") == WRONG


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tests/test_a.py::Case::test_b", ("tests/test_a.py", "Case::test_b")),
        ("test_b (pkg.test_a.Case)", ("pkg.test_a", "Case::test_b")),
        ("test_b (pkg.test_a.Case.test_b)", ("pkg.test_a", "Case::test_b")),
        ("A sentence about a test.", ("", "A sentence about a test.")),
    ],
)
def test_names_of_tests_are_read(name, found):
    assert split_test(name) == found


@pytest.mark.parametrize(
    ("path", "protected"),
    [
        ("conftest.py", True),
        ("pkg/conftest.py", True),
        ("sitecustomize.py", True),
        ("a.pth", True),
        ("unittest/__init__.py", True),
        ("src/json.py", True),
        ("pytest.py", True),
        ("tests/test_area.py", True),
        ("pkg/area.py", False),
        ("pkg/json.py", False),
        ("new.py", False),
    ],
)
def test_what_could_change_how_tests_run_does_not_count(path, protected):
    assert is_protected(path, WRONG) is protected
