"""Hidden tests of generated repositories: calls whose results are compared outside the sandbox.

The judging sandbox gets the repository, the calls and their arguments, but never the right results.
Whatever the tested code does there (print, end the interpreter, replace `repr`, override
comparisons), a test passes only if the right text is returned under its number, exactly once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence

from espalier.sandbox import ExecResult, Sandbox, SandboxRefused
from espalier_environments.software_repair.repositories import Case

_MAX_RESULT = 2000
"""Most characters of a returned result; right ones are far shorter."""

_SCRIPT = """
def _judge():
    import ast, importlib, json, os, sys
    given = json.load(sys.stdin)
    for path, content in given["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            stream.write(content)
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    write, flush, dump, read = sys.stdout.write, sys.stdout.flush, json.dumps, ast.literal_eval
    for number, (module, function, arguments) in enumerate(given["calls"]):
        try:
            called = getattr(importlib.import_module(module), function)
            said = repr(called(*read("(" + arguments + ",)" if arguments else "()")))
        except BaseException as error:
            said = "raises " + type(error).__name__
        write("\\n" + given["mark"] + " " + str(number) + " " + dump(said[:given["most"]]) + "\\n")
        flush()
_judge()
"""


async def passed_cases(
    sandbox: Sandbox, files: Mapping[str, str], cases: Sequence[Case], timeout_s: float
) -> list[bool]:
    """Return for each case whether it passes in a repository of these files.

    Args:
        sandbox: an empty sandbox, which is left modified.
        files: path -> content, which is untrusted.
        cases: hidden tests.
        timeout_s: time limit of all tests together.

    Raises:
        SandboxError: the sandbox was lost, for an outside cause or by the tested code.
    """
    mark = secrets.token_hex(8)
    given = {
        "files": dict(files),
        "calls": [[case.module, case.function, case.arguments] for case in cases],
        "mark": mark,
        "most": _MAX_RESULT,
    }
    try:
        result = await sandbox.run_python(
            _SCRIPT, stdin=json.dumps(given).encode(), timeout_s=timeout_s
        )
    except SandboxRefused:  # the input is too large
        return [False] * len(cases)
    said = _said(result, mark)
    return [said.get(number) == case.returned for number, case in enumerate(cases)]


def _said(result: ExecResult, mark: str) -> dict[int, str]:
    """Return number of a case -> returned text; numbers that occur twice are left out."""
    said: dict[int, str] = {}
    twice: set[int] = set()
    for line in result.stdout.decode(errors="replace").split("\n"):
        parts = line.split(" ", 2)
        if len(parts) < 3 or parts[0] != mark or not (parts[1].isascii() and parts[1].isdecimal()):
            continue
        number = int(parts[1][:6])
        try:
            value: object = json.loads(parts[2])
        except (ValueError, RecursionError):
            continue
        if number in said:
            twice.add(number)
        if isinstance(value, str):
            said[number] = value
    return {number: value for number, value in said.items() if number not in twice}
