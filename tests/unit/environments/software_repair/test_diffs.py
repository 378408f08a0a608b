"""Unified diffs: what git writes is read and applied; hostile text is refused by one error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_environments.software_repair.diffs import (
    DiffError,
    FilePatch,
    Hunk,
    applied,
    checked_path,
    diff_of,
    parsed_diff,
)
from espalier_environments.software_repair.worktree import Worktree

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "-e", "+f", "\\ g", "x\r", "@@"]))
DIFF = """diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -1,3 +1,3 @@
 x = 1
-y = 2
+y = 3
 z = 4
"""


@st.composite
def contents(draw):
    lines = draw(LINES)
    return "\n".join(lines) + ("\n" if lines and draw(st.booleans()) else "")


@given(before=contents(), after=contents())
def test_a_made_diff_leads_from_one_tree_to_the_other(before, after):
    files = {"pkg/m.py": before, "other.txt": "o\n"}
    text = diff_of(files, {"pkg/m.py": after})
    tree = Worktree(files)
    tree.apply(parsed_diff(text))
    assert tree.read("pkg/m.py") == after
    assert tree.read("other.txt") is None
    assert diff_of(files, files) == ""


@given(text=st.text(max_size=300), at=st.integers(0, len(DIFF)), cut=st.integers(0, 40))
def test_spoilt_diffs_are_read_or_refused(text, at, cut):
    spoilt = DIFF[:at] + text + DIFF[at + cut :]
    try:
        patches = parsed_diff(spoilt)
        Worktree({"m.py": "x = 1\ny = 2\nz = 4\n"}).apply(patches)
    except DiffError:
        return
    assert all(patch.path == checked_path(patch.path) for patch in patches)


def test_a_hunk_is_found_where_its_lines_moved_to():
    (patch,) = parsed_diff(DIFF)
    moved = "new\nx = 1\nx = 1\ny = 2\nz = 4\n"
    assert applied(moved, patch) == "new\nx = 1\nx = 1\ny = 3\nz = 4\n"
    with pytest.raises(DiffError, match="hunk 1"):
        applied("x = 1\ny = 9\nz = 4\n", patch)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up.py", "a/../../b", "a/.git/config", "", "a\\b", "a\nb", ".GIT/x"]
)
def test_no_path_leads_out_of_the_repository(path):
    with pytest.raises(DiffError):
        checked_path(path)
    with pytest.raises(DiffError):
        parsed_diff(f"--- a/m.py\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n@@")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no diff",
        "--- a/m.py\n+++ b/m.py\n",
        "--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n x\n",
        "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n?x\n+y\n",
        "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-x\n+y\n",
        "diff --git a/b.png b/b.png\nGIT binary patch\nliteral 1\n",
        DIFF + DIFF,
        "--- a/m.py\n+++ b/m.py\n@@ -99999999,1 +1 @@\n-x\n+y\n",
    ],
)
def test_what_is_no_diff_is_refused(text):
    with pytest.raises(DiffError):
        parsed_diff(text)


def test_a_diff_that_half_applies_changes_nothing():
    both = DIFF + "--- a/n.py\n+++ b/n.py\n@@ -1 +1 @@\n-q\n+r\n"
    tree = Worktree({"m.py": "x = 1\ny = 2\nz = 4\n", "n.py": "other\n"})
    with pytest.raises(DiffError):
        tree.apply(parsed_diff(both))
    assert not tree.changed


HEAD = "--- a/f\n+++ b/f\n"


def patched(content, hunks):
    (patch,) = parsed_diff(HEAD + hunks)
    return applied(content, patch)


@pytest.mark.parametrize(
    ("content", "hunks"),
    [
        ("a\n" * 20_000, "@@ -1 +1 @@\n a\n" * 15_000),
        ("".join(f"{n}\n" for n in range(20_000)), "@@ -1,0 +1 @@\n+x\n" * 15_000),
        ("a\n" * 9_000, "@@ -1,9000 +1,9000 @@\n" + " a\n" * 9_000),
        ("b\n" + "a\n" * 9_000, "@@ -9000 +9000 @@\n-b\n+c\n" + "@@ -1 +1 @@\n a\n" * 8_000),
    ],
)
def test_many_hunks_are_applied_in_one_pass(content, hunks):
    assert patched(content, hunks).count("a\n") == content.count("a\n")


@pytest.mark.parametrize(
    ("content", "hunks"),
    [
        ("a\n" * 20_000, "@@ -1,9000 +1,9000 @@\n" + " a\n" * 8_999 + " b\n"),
        (
            "".join(f"{n}\n" for n in range(20_000)),
            "".join(f"@@ -{20_000 * (n % 2)} +1 @@\n {n}\n" for n in range(15_000)),
        ),
        ("a\n" * 20_000 + "b\n", "@@ -1,3 +1,3 @@\n a\n a\n b\n" + "@@ -1 +1 @@\n a\n"),
        (("a\n" * 99 + "b\n") * 200, "@@ -1,101 +1,101 @@\n" + " a\n" * 100 + " b\n"),
    ],
)
def test_hunks_that_fit_nowhere_are_refused_in_bounded_time(content, hunks):
    with pytest.raises(DiffError, match=r"are not there|too many"):
        patched(content, hunks)


@given(before=contents(), old=LINES, start=st.integers(0, 9))
def test_a_hunk_stands_at_the_nearest_fitting_place(before, old, start):
    lines = before.splitlines(keepends=True)
    wanted = [f"{line}\n" for line in old[:2]]
    fits = [n for n in range(len(lines) + 1) if wanted and lines[n : n + len(wanted)] == wanted]
    patch = FilePatch("f", "f", (Hunk(start, tuple(wanted), ("new\n",), ""),))
    if wanted and not fits:
        with pytest.raises(DiffError):
            applied(before, patch)
    elif fits:
        place = min(fits, key=lambda n: (abs(n - (start - 1)), n))
        lines[place : place + len(wanted)] = ["new\n"]
        assert applied(before, patch) == "".join(lines)
