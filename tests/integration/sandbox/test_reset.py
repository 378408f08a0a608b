"""Between episodes: snapshots, resets, and what they leave."""

import pytest

from espalier.sandbox import SandboxRefused
from tests.integration.sandbox.host import something_running

pytestmark = pytest.mark.contract

_TREE = """
mkdir -p a/b; echo one > a/one; echo run > a/b/run.sh; chmod 750 a/b/run.sh; ln -s one a/link
ln a/one a/hard; touch -d 2001-01-01 a/one; mkdir empty; chmod 700 empty
"""


def _shown(run, sandbox):
    code = """
import os, stat
for folder, folders, files in os.walk(".", followlinks=False):
    folders.sort()
    for name in sorted(folders + files):
        path = os.path.join(folder, name)
        s = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(s.st_mode) else ""
        text = open(path).read() if stat.S_ISREG(s.st_mode) else ""
        print(path, oct(s.st_mode), link, text, s.st_mtime if text else "")
"""
    return run(sandbox.run_python(code)).stdout


def test_a_reset_goes_back_to_the_snapshot_whatever_was_done_since(run, sandbox):
    assert run(sandbox.exec(["sh", "-c", _TREE])).succeeded
    before = _shown(run, sandbox)
    kept = run(sandbox.snapshot())
    wreck = (
        "rm -rf a/b; echo more >> a/one; chmod 000 a empty; mkdir new; mkfifo pipe; ln -s / root"
    )
    assert run(sandbox.exec(["sh", "-c", wreck])).succeeded
    run(sandbox.reset(kept))
    assert _shown(run, sandbox) == before
    run(sandbox.reset(kept))
    assert _shown(run, sandbox) == before


def test_a_reset_without_a_snapshot_empties_everything_that_can_be_written(run, sandbox):
    litter = "for d in /workspace /tmp /dev/shm; do mkdir -p $d/x/y; echo > $d/x/y/z; done"
    assert run(sandbox.exec(["sh", "-c", litter])).succeeded
    run(sandbox.reset())
    left = run(sandbox.exec(["sh", "-c", "ls -A /workspace /tmp /dev/shm"]))
    assert left.stdout == b"/dev/shm:\n\n/tmp:\n\n/workspace:\n"


def test_a_reset_ends_the_session_and_all_runs(run, sandbox):
    async def reset_meanwhile():
        await sandbox.python("x = 1")
        async with something_running(sandbox) as running:
            await sandbox.reset()
            return await running.task

    result = run(reset_meanwhile())
    assert (result.signal, result.killed_by) == (9, "sandbox")
    assert run(sandbox.python("x")).exit_status == 1


def test_going_back_forgets_later_snapshots(run, sandbox):
    names = []
    for content in (b"first", b"second"):
        run(sandbox.put("x", content))
        names.append(run(sandbox.snapshot()))
    run(sandbox.reset(names[1]))
    assert run(sandbox.get("x")) == b"second"
    run(sandbox.reset(names[0]))
    assert run(sandbox.get("x")) == b"first"
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.reset(names[1]))
    assert refusal.value.status == 404
    assert run(sandbox.get("x")) == b"first"


def test_a_snapshot_is_refused_while_something_runs(run, sandbox):
    async def snapshot_meanwhile():
        async with something_running(sandbox):
            with pytest.raises(SandboxRefused, match="in flight"):
                await sandbox.snapshot()

    run(snapshot_meanwhile())


def test_a_snapshot_of_too_much_is_refused(run, sandbox):
    run(sandbox.exec(["truncate", "-s", "70000000", "one", "two"]))
    with pytest.raises(SandboxRefused) as refusal:
        run(sandbox.snapshot())
    assert refusal.value.status == 413


def test_a_reset_gets_through_whatever_a_tree_can_be(run, sandbox):
    code = """
import os
for _ in range(3000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
open("bottom", "w").close()
os.chdir("/workspace")
os.mkdir("closed")
os.mkdir("closed/in")
os.chmod("closed/in", 0)
os.chmod("closed", 0)
for i in range(2000):
    os.symlink("/", f"link{i}")
os.mkfifo("pipe")
open("\\udcff\\n name", "w").close()
os.chmod("/workspace", 0o1777) if os.stat("/workspace").st_uid == os.getuid() else None
print("made")
"""
    assert run(sandbox.run_python(code)).stdout == b"made\n"
    run(sandbox.reset())
    assert run(sandbox.exec(["ls", "-A"])).stdout == b""
