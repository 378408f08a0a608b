"""The tool `python`: runs a program in a sandbox, and shows what it printed."""

from __future__ import annotations

from collections.abc import Callable

from espalier.environments.python_math.python_runs import PythonRuns
from espalier.environments.tools import Tool, ToolOutput
from espalier.sandbox import ExecResult, SandboxRefused

NOTHING_PRINTED = "(nothing printed)"
_CUT = " ... "


def python_tool(runs: Callable[[], PythonRuns], max_characters: int) -> Tool:
    """The tool over the programs of one episode.

    Args:
        runs: called when the first program runs.
        max_characters: more than this of a program's output is cut out of its middle.
    """

    async def python(code: str) -> ToolOutput:
        """Run a complete Python program and read what it prints."""
        try:
            result = await runs().run(code)
        except SandboxRefused as refused:
            return ToolOutput(f"Refused: {refused}", succeeded=False)
        return ToolOutput(observed(result, max_characters), succeeded=result.succeeded)

    return Tool(python, call_tag="code", result_tag="interpreter", takes_code=True)


def observed(result: ExecResult, max_characters: int) -> str:
    """What the policy reads of a program's end: its output, and the limit that ended it."""
    text = result.text.strip()
    if result.timed_out:
        text += "\nTimeoutError: the program took too long"
    elif result.killed_by is not None:
        text += f"\nKilled: limit of {result.killed_by.replace('_', ' ')}"
    return shortened(text.strip() or NOTHING_PRINTED, max_characters)


def shortened(text: str, max_characters: int) -> str:
    """At most so many characters of `text`, from both ends: a traceback says at its end why."""
    if len(text) <= max_characters:
        return text
    kept = max_characters - len(_CUT)
    return text[: kept // 2] + _CUT + text[len(text) - (kept - kept // 2) :]
