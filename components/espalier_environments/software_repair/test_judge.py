"""Hidden tests of instances: test files that our own runner executes in the judging sandbox.

The tests are code, and run in one interpreter with the tested code: unlike those of generated
repositories (`case_judge`), they cannot be judged from outside. The following protects the verdict:

- outcomes count only under a mark that is hidden from the tested code, each test once, and all
  tests known here must be present;
- controls that must fail and must pass run among them, under random names: code that changes how
  assertions, results or the interpreter's exit work changes their outcome, and then nothing counts;
- files that could change the runner come from the snapshot, and tests from the test patch.

A program that finds the tests in its own memory, and computes what they compare, is not detected.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Mapping, Sequence

from espalier.sandbox import Sandbox, SandboxRefused
from espalier_environments.software_repair import test_runner
from espalier_environments.software_repair.diffs import FilePatch
from espalier_environments.software_repair.protected import judged_files
from espalier_environments.software_repair.worktree import Worktree

_SOURCE = inspect.getsource(test_runner)


def files_under_test(
    snapshot: Mapping[str, str],
    changed: Mapping[str, str | None],
    test_patch: tuple[FilePatch, ...],
) -> dict[str, str]:
    """Return the judged files: snapshot, policy's changes, and the test patch on top.

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
    sandbox: Sandbox,
    files: Mapping[str, str],
    tests: Sequence[str],
    timeout_s: float,
    *,
    patched: Sequence[str] = (),
) -> dict[str, bool]:
    """Return name of a test -> whether it passed; a test without an outcome has failed.

    Args:
        sandbox: an empty sandbox, which is left modified.
        files: the files from `files_under_test`.
        tests: names in SWE-bench's form, for unittest or pytest.
        timeout_s: time limit of all tests together.
        patched: files of the test patch, in which a name that says no file is looked for first.

    Raises:
        SandboxError: the sandbox was lost, for an outside cause or by the tested code.
    """
    mark = secrets.token_hex(16)
    given = {
        "files": dict(files),
        "tests": list(tests),
        "patched": list(patched),
        "mark": mark,
        "source": _SOURCE,
    }
    try:
        result = await sandbox.exec(
            ["python3", "-c", f"{_SOURCE}\nsupervise()\n"],
            stdin=json.dumps(given).encode(),
            timeout_s=timeout_s,
        )
    except SandboxRefused:  # the input is too large
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
