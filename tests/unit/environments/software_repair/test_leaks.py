"""The scan for leaks names what was planted, and finds nothing in a clean tree."""

import asyncio
import io
import os
import tarfile
import zlib

import pytest

from espalier.sandbox.protocol import ExecResult
from espalier_environments.software_repair.diffs import diff_of, parsed_diff
from espalier_environments.software_repair.leak_scan import folders_from, scan_folder
from espalier_environments.software_repair.leaks import (
    LeakError,
    fix_pairs,
    refuse_leaks,
    refuse_leaks_of_sandbox,
)

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
    looked_at = {**TREE, "docs/fix.patch": ""}
    refuse_leaks("the tree", looked_at, PAIRS, ignored=["docs/*.patch"])


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
        ("backup.tar", tarred(RIGHT), "packed"),
        ("notes.md", "we check that area(7) is 150.5", "the hidden test"),
    ],
)
def test_a_planted_leak_is_named(path, content, meaning):
    with pytest.raises(LeakError, match=meaning) as refused:
        refuse_leaks("the tree", {**TREE, path: content}, PAIRS, tests=TESTS)
    assert path in str(refused.value)


def test_a_folder_is_scanned_without_those_below_it(tmp_path):
    for path, text in (("b/x.patch", ""), ("old.py", RIGHT), ("other.bin", RIGHT)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "skipped").mkdir()
    (tmp_path / ".git").symlink_to("b")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    below, found = scan_folder(str(tmp_path), [f"{tmp_path}/skipped"], PAIRS, [f"{tmp_path}/"])
    assert sorted(below) == [f"{tmp_path}/b", f"{tmp_path}/{os.fsdecode(bytes([255]))}"]
    assert [os.path.basename(path) for path, _ in found] == [".git", "old.py"]
    assert scan_folder(f"{tmp_path}/gone", [], PAIRS, []) == ([], [])


def test_a_scan_goes_on_from_where_it_was(tmp_path):
    for path in ("a/a", "a/b b", "a.b", "b/c/d", f"b/{os.fsdecode(bytes([255]))}/e"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "skipped").mkdir()
    skipped = [f"{tmp_path}/skipped"]

    def walked(pending):
        seen = []
        while pending:
            folder = pending.pop()
            if folder.startswith(str(tmp_path)):
                seen.append(folder)
                pending += reversed(scan_folder(folder, skipped, PAIRS, [])[0])
        return seen

    whole = walked([str(tmp_path)])
    assert len(whole) == 10
    for number, position in enumerate(whole):
        assert walked(folders_from(position, skipped)) == whole[number:]


class Silent:
    """A sandbox whose runs end like this."""

    name = "sandbox-1"

    def __init__(self, **ended):
        known = {"stdout": b"", "stderr": b"", "exit_status": 0, "signal": None, "killed_by": None}
        known |= {"truncated": False, "duration_s": 1.0, "cpu_s": 1.0, "max_rss_bytes": 1}
        self.ended = ExecResult(**known | ended)

    async def run_python(self, code, *, stdin, timeout_s):
        return self.ended


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ({"killed_by": "wall_time"}, "wall_time"),
        ({"truncated": True, "killed_by": "output"}, "output"),
        ({"exit_status": 1, "stderr": b"MemoryError"}, "MemoryError"),
    ],
)
def test_a_scan_that_does_not_end_is_named(ended, why):
    with pytest.raises(LeakError, match=why):
        asyncio.run(refuse_leaks_of_sandbox(Silent(**ended), PAIRS))
