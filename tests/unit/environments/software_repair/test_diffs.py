"""Unified diffs: what git writes is read and applied; hostile text is refused by one error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_environments.software_repair.diffs import (
    DiffError,
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
