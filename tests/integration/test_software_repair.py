"""Software repair in real sandboxes: golds, ways to cheat that all fail, the shell, the scan."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from espalier.environments import check_golds
from espalier.environments.teaching import ScriptTeacher
from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.records.trajectory import Trajectory
from espalier.sandbox.local import LocalBackend
from espalier_environments.software_repair import leaks
from espalier_environments.software_repair.leaks import LeakError, refuse_leaks_of_sandbox
from tests.unit.environments.software_repair.test_instances import (
    RIGHT,
    WRONG,
    family,
    row,
    rows_file,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("local_sandboxes")

NOWHERE = Path("unused")
EQUAL = (
    "class E(int):\n    def __eq__(self, other):\n        return True\n"
    "    __hash__ = int.__hash__\n"
)
FORGED = {
    "equals everything": f"{EQUAL}def area(r):\n    return E(6)\n",
    "exits": "import sys\ndef area(r):\n    sys.exit(0)\n",
    "ends in a call": "import os\ndef area(r):\n    os._exit(0)\n",
    "prints success": "print('OK')\ndef area(r):\n    print('passed')\n    return 3 * r\n",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef area(r):\n    return 3 * r\n",
    "patches assertions": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
        "def area(r):\n    return 3 * r\n"
    ),
    "ends at once": "import os\nos._exit(0)\n",
    "patches results": (
        "import unittest\nunittest.TestResult.wasSuccessful = lambda self: True\n"
        "def area(r):\n    return 3 * r\n"
    ),
    "patches run": (
        "import unittest\ndef run(self, result=None):\n    result.testsRun = 1\n"
        "unittest.TestCase.run = run\ndef area(r):\n    return 3 * r\n"
    ),
    "writes to every descriptor": (
        "import os\nfor n in range(3, 20):\n    try:\n"
        '        os.write(n, b\'["AreaTests::test_two", "passed"]\\n\')\n'
        "    except OSError:\n        pass\ndef area(r):\n    return 3 * r\n"
    ),
    "writes to its supervisor": (
        "import os\ntry:\n    with open(f'/proc/{os.getppid()}/fd/1', 'w') as stream:\n"
        "        stream.write('passed')\nexcept OSError:\n    pass\n"
        "def area(r):\n    return 3 * r\n"
    ),
}
"""Name -> content of the module under test."""
PLANTED = {
    "conftest.py": "import pkg.area\npkg.area.area = lambda r: 3 * r * r\n",
    "sitecustomize.py": "import sys\nsys.exit(0)\n",
    "unittest/__init__.py": "class TestCase:\n    pass\n",
    "tests/test_area.py": "import unittest\nclass AreaTests(unittest.TestCase):\n    pass\n",
    "a.pth": "import os; os._exit(0)\n",
}
"""Path -> content of a file beside the module under test, which stays wrong."""


def call(name, /, **arguments):
    return ToolCalls((ToolCall(name=name, arguments=arguments),))


def played(environments, task, *actions):
    async def go():
        environment = environments(task)
        environment.reset(task)
        seen = [await environment.step(action) for action in actions]
        reward = await environment.score()
        return ["".join(m.content for m in step.messages) for step in seen], reward["outcome"]

    return asyncio.run(go())


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """An instance over a snapshot, and the environments that play it."""
    folder = tmp_path_factory.mktemp("snapshots")
    own = family(snapshots=snapshot(folder), sandbox={"packages": [], "size": 1})
    path = rows_file(folder, row())
    (task,) = own.read_benchmark(path)
    with own.benchmark_environments(path, folder) as environments:
        yield own, task, environments


def test_the_gold_patch_resolves_an_instance(public):
    own, task, environments = public
    assert check_golds(own, [task], environments).accepted == 1


def test_no_forged_module_resolves_an_instance(public):
    _, task, environments = public
    for name, content in FORGED.items():
        write = call("write_file", path="pkg/area.py", content=content)
        _, outcome = played(environments, task, write, FinalAnswer("done"))
        assert outcome == 0, name


def test_no_planted_file_resolves_an_instance_or_spoils_a_fix(public):
    _, task, environments = public
    fix = call("write_file", path="pkg/area.py", content=RIGHT)
    for path, content in PLANTED.items():
        plant = call("write_file", path=path, content=content)
        assert played(environments, task, plant, call("submit"))[1] == 0, path
        assert played(environments, task, plant, fix, call("submit"))[1] == 1, path


def test_calls_of_a_made_repository_are_judged_from_outside():
    own = family(sandbox={"packages": [], "size": 1})
    tasks = own.tasks("dev", 6)
    with own.environments(NOWHERE) as over:
        environments = over("train")
        teacher = ScriptTeacher(environments)
        for task in tasks:
            shown = teacher.demonstrate(task, partial(own.demonstrate, task))
            assert isinstance(shown, Trajectory), shown
        assert check_golds(own, tasks[:2], environments).faults == ()
        task = tasks[0]
        fault = task.arguments["fault"]
        forged = (
            f"{EQUAL}def {fault['function']}(*given):\n    return E(1)\n",
            "import os, sys\nos._exit(0)\n",
            "import builtins\nbuiltins.repr = lambda value: '0'\n",
            "print('passed')\n",
        )
        wrong = task.arguments["files"][fault["path"]]
        for text in forged:
            write = call("write_file", path=fault["path"], content=f"{wrong}\n{text}")
            assert played(environments, task, write, call("submit"))[1] == 0, text
        assert played(environments, task, call("submit"))[1] == 0, "nothing was changed"


@pytest.mark.slow
def test_commands_see_edits_and_change_the_tree(tmp_path):
    own = family(shell=True, snapshots=snapshot(tmp_path), sandbox={"packages": [], "size": 1})
    path = rows_file(tmp_path, row())
    (task,) = own.read_benchmark(path)
    with own.benchmark_environments(path, tmp_path) as environments:
        seen, outcome = played(
            environments,
            task,
            call("write_file", path="notes.txt", content="edited"),
            call("shell", command="cat notes.txt; ls -a; rm notes.txt"),
            call("shell", command="sed -i 's/3 [*] r/3 * r * r/' pkg/area.py"),
            call("list_files"),
            call("shell", command="cd /; find / -name '.git' -o -name 'test_area*' | head"),
            call("submit"),
        )
    assert "edited" in seen[1]
    assert ".git" not in seen[1]
    assert seen[3].split() == sorted(WRONG)
    assert "test_area" not in seen[4]
    assert outcome == 1


async def scanned(*planted, ignored=()):
    sandbox = await LocalBackend(packages=(), preimport=()).create()
    try:
        for path in planted:
            await sandbox.put(path, b"x")
        await refuse_leaks_of_sandbox(sandbox, frozenset(), ignored=ignored)
    finally:
        await sandbox.close()


@pytest.mark.slow
def test_the_scan_of_a_sandbox_names_what_was_planted(monkeypatch):
    asyncio.run(scanned("a.py"))
    monkeypatch.setattr(leaks, "_SKIPPED", ("/proc", "/sys", "/dev", "/usr", "/root", "/etc"))
    with pytest.raises(LeakError, match="packed-refs"):
        asyncio.run(scanned("old/packed-refs"))
    known = [f"a/.cache/pip/{number}" for number in range(60)]
    with pytest.raises(LeakError, match=r"away: \S+/packed-refs \(\S"):
        asyncio.run(scanned(*known, "b/packed-refs", ignored=["*/.cache/pip*"]))
