"""Files that a policy may change and that are not judged: whatever could change how tests run."""

from __future__ import annotations

import sys
from collections.abc import Mapping

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
    """Whether a policy's change of `path` is left out where it is judged.

    Settings of test runners, what Python runs as it starts, tests, and new modules by the name of
    one of the standard library or of a test runner. One that the snapshot has is the project's own.
    """
    name = path.rpartition("/")[2]
    if name in _RUNNERS or name.endswith(_ENDINGS) or is_test(path):
        return True
    return path not in snapshot and any(_shadows(path, root) for root in _ROOTS)


def is_test(path: str) -> bool:
    """Whether a file holds tests, by where it is and what it is called."""
    *folders, name = path.split("/")
    if name.endswith(".py") and (
        name.startswith("test_") or name.endswith(("_test.py", "_tests.py"))
    ):
        return True
    return name in {"test.py", "tests.py"} or any(
        part in {"test", "tests", "testing"} for part in folders
    )


def _shadows(path: str, root: str) -> bool:
    if not path.startswith(root):
        return False
    module = path[len(root) :].partition("/")[0].partition(".")[0]
    return module in sys.stdlib_module_names or module in _MODULES_OF_RUNNERS


def judged_files(snapshot: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """The files that hidden tests run over: the snapshot with a policy's changes, where they count.

    Args:
        snapshot: path -> content.
        changed: path -> new content; None: deleted.
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
