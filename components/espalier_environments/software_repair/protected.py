"""Files whose changes by a policy are ignored in judging, as they could change how tests run."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from espalier_environments.software_repair.test_runner import is_test

_RUNNERS = frozenset(
    {
        "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml",
        "noxfile.py", "runtests.py", ".coveragerc", "sitecustomize.py", "usercustomize.py",
        "pyvenv.cfg",
    }
)  # fmt: skip
_ENDINGS = (".pth", ".egg-link", ".so", ".pyd", ".pyc")
_MODULES_OF_RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "tests"})
_ROOTS = ("", "src/", "lib/")


def is_protected(path: str, snapshot: Mapping[str, str]) -> bool:
    """Return whether a policy's change of `path` is ignored in judging.

    This covers settings of test runners, what Python runs at start-up, tests, and new modules named
    like one of the standard library or of a test runner. A module that the snapshot has is the
    project's own.
    """
    name = path.rpartition("/")[2]
    if name in _RUNNERS or name.endswith(_ENDINGS) or is_test(path):
        return True
    if path in snapshot:
        return False
    for root in _ROOTS:
        if path.startswith(root):
            module = path[len(root) :].partition("/")[0].partition(".")[0]
            if module in sys.stdlib_module_names or module in _MODULES_OF_RUNNERS:
                return True
    return False


def judged_files(snapshot: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """Return the files that hidden tests run on: the snapshot with the policy's valid changes.

    Args:
        snapshot: path -> content.
        changed: path -> new content; None if deleted.
    """
    files = dict(snapshot)
    for path, content in changed.items():
        if is_protected(path, snapshot):
            continue
        if content is None:
            files.pop(path, None)
        else:
            files[path] = content
    return files
