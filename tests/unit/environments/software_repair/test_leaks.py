"""The scan for leaks names what was planted, and finds nothing in a clean tree."""

import io
import tarfile
import zlib

import pytest

from espalier.environments.software_repair.diffs import diff_of, parsed_diff
from espalier.environments.software_repair.leaks import LeakError, fix_pairs, refuse_leaks

WRONG = "def area(r):\n    half = r / 2\n    value = 3 * r\n    return value + half\n"
RIGHT = WRONG.replace("3 * r", "3 * r * r")
TREE = {"shapes.py": WRONG, "other.py": "x = 1\n", "docs/a.txt": "return value + half\n"}
PAIRS = fix_pairs(parsed_diff(diff_of({"shapes.py": WRONG}, {"shapes.py": RIGHT})))
TESTS = [("area(7)", "150.5")]


def tarred(text):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a/shapes.py")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue().decode("utf-8", "surrogateescape")


def object_of(text):
    content = zlib.compress(b"blob 3\x00" + text.encode())
    return content.decode("utf-8", "surrogateescape")


def test_a_clean_tree_has_no_leak():
    refuse_leaks("the tree", TREE, PAIRS, tests=TESTS)


@pytest.mark.parametrize(
    ("path", "content", "meaning"),
    [
        (".git/HEAD", "ref: refs/heads/main", "git's folder"),
        ("vendor/objects/ab/" + "0" * 38, "x", "git objects"),
        ("data/blob", object_of("y"), "a git object"),
        ("data/pack", "PACK\x00\x00\x00\x02", "a pack"),
        ("repo.bundle", "# v2 git bundle\n", "a git bundle"),
        ("bare/packed-refs", "", "references"),
        ("bare/logs/HEAD", "", "references"),
        ("shapes.py.orig", "", "before a patch"),
        ("shapes.py.rej", "", "did not apply"),
        ("fix.patch", "", "a patch"),
        ("__pycache__/shapes.cpython-311.pyc", "", "compiled"),
        (".cache/pip/http/a", "", "a cache"),
        ("old/shapes.py", RIGHT, "lines of the fix"),
        ("notes.txt", diff_of({"s": WRONG}, {"s": RIGHT}), "lines of the fix"),
        ("backup.tar", tarred(RIGHT), "lines of the fix or of its hidden tests, packed"),
        ("notes.md", "we check that area(7) is 150.5", "the hidden test"),
    ],
)
def test_a_planted_leak_is_named(path, content, meaning):
    with pytest.raises(LeakError, match=meaning) as refused:
        refuse_leaks("the tree", {**TREE, path: content}, PAIRS, tests=TESTS)
    assert path in str(refused.value)


def test_what_a_person_has_looked_at_is_passed_over():
    tree = {**TREE, "docs/fix.patch": ""}
    refuse_leaks("the tree", tree, PAIRS, ignored=["docs/*.patch"])
