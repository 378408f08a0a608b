"""Hidden tests of instances: files of tests that a runner of our own runs in the judging sandbox.

The tests are code, and run in one interpreter with the code under test: unlike those of made
repositories (`case_judge`), they cannot be judged from outside. What is done about it:

- outcomes count only under a mark that the code under test is not told, each test once, and all of
  those that are known here have to be there;
- controls that must fail and must pass run among them, under random names: whoever changes how
  assertions, results or the interpreter's end work changes their outcome, and nothing counts;
- what could change the runner is taken from the snapshot, and tests from the test patch.

A program that finds the tests in its own memory, and computes what they compare, is not noticed.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Mapping, Sequence

from espalier.environments.software_repair import test_runner
from espalier.environments.software_repair.diffs import FilePatch
from espalier.environments.software_repair.protected import judged_files
from espalier.environments.software_repair.worktree import Worktree
from espalier.sandbox import Sandbox, SandboxRefused

_SOURCE = inspect.getsource(test_runner)


def files_under_test(
    snapshot: Mapping[str, str],
    changed: Mapping[str, str | None],
    test_patch: tuple[FilePatch, ...],
) -> dict[str, str]:
    """What is put into the judging sandbox: snapshot, policy's changes, test patch over them.

    Raises:
        DiffError: the test patch does not apply to the snapshot.
    """
    tree = Worktree(snapshot)
    tree.apply(test_patch)
    tests = tree.changed
    kept = {path: content for path, content in changed.items() if path not in tests}
    files = judged_files(snapshot, kept)
    for path, content in tests.items():
        if content is None:
            files.pop(path, None)
        else:
            files[path] = content
    return files


async def passed_tests(
    sandbox: Sandbox, files: Mapping[str, str], tests: Sequence[str], timeout_s: float
) -> dict[str, bool]:
    """Name of a test -> whether it passes; a test that was not told has failed.

    Args:
        sandbox: empty; it is given back dirty.
        files: see `files_under_test`.
        tests: names as SWE-bench writes them, of unittest or pytest.
        timeout_s: for all of them together.

    Raises:
        SandboxError: it was lost, from outside or by the code under test.
    """
    mark = secrets.token_hex(16)
    given = {"files": dict(files), "tests": list(tests), "mark": mark, "source": _SOURCE}
    try:
        result = await sandbox.exec(
            ["python3", "-c", f"{_SOURCE}\nsupervise()\n"],
            stdin=json.dumps(given).encode(),
            timeout_s=timeout_s,
        )
    except SandboxRefused:  # too many files for a run
        return dict.fromkeys(tests, False)
    outcomes: dict[str, bool] = {}
    for line in result.stdout.decode(errors="replace").split("\n"):
        try:
            said: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match said:
            case [str(marked), str(name), str(outcome)] if marked == mark:
                outcomes[name] = outcome == test_runner.PASSED and name not in outcomes
            case _:
                continue
    return {name: outcomes.get(name, False) for name in tests}
