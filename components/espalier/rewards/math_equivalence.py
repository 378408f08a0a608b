r"""Whether two mathematical answers mean the same, decided within a bounded time.

The final answer of a text is the content of its last \boxed{...}; without one, of its last line
`ANSWER: ...` (the form of Inspect's tasks and simple-evals) or `#### 72` (GSM8K's), or the text
itself. Single numbers are compared here, exactly (`math_numbers`). Everything else goes to
math-verify (Kydlicek 2025, with latex2sympy2-extended) in a separate process with a limit on
processor time: an answer such as 9^{9^{9^{9}}} is then wrong, and no episode waits for it. On a
busy machine a comparison takes longer, with the same result.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import lru_cache

from espalier.records import EspalierError
from espalier.rewards.math_numbers import UNKNOWN, bare_formula, read_number

_BOXED = r"\boxed"
_BRACE = re.compile("[{}]")

_ANSWER_LINE = re.compile(
    r"^(?:[ \t*_#>-]*(?:final )?answer[*_]*:(.+)|#### (-?[\d.,]+)\s*)$",
    re.IGNORECASE | re.MULTILINE,
)


def final_answer(text: str) -> str:
    """Return the last closed box's content, else the last answer line's, else `text`; stripped."""
    boxed = last_boxed(text)
    if boxed:
        return boxed.strip()
    lines = _ANSWER_LINE.findall(text)
    return "".join(lines[-1]).strip(" \t\r*") if lines else text.strip()


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`, nested braces included, or None."""
    opened: list[int] = []
    start, end = -1, -1
    for brace in _BRACE.finditer(text):
        place = brace.start()
        if brace[0] == "{":
            opened.append(place)
        elif opened:
            begun = opened.pop()
            is_box = text[max(0, begun - len(_BOXED)) : begun] == _BOXED
            if is_box and begun > start:  # of nested boxes the inner one, which is closed first
                start, end = begun, place
    return None if start < 0 else text[start + 1 : end]


MAX_ANSWER_CHARACTERS = 400
"""A longer answer is wrong: no gold answer of the known data sets comes near it."""

_COMPARE_WITHIN_S = 5
"""Limit of processor time; the kernel may allow up to one second more."""
_REPLY_WITHIN_S = 300.0
_START_WITHIN_S = 300.0
"""Importing sympy takes about a second on an idle machine, over a minute on a busy one."""
_BOUND = re.compile(
    r"[\s$]*(?:[a-zA-Z]\s*)?(?:[<>\u2264\u2265\u2248~]|\\(?:[lg]eq?|[lg]t|neq?|approx|sim)(?![a-z]))"
)
_IS_LATEX = re.compile(r"\$|\\\(|\\\[|\\boxed")


class MathJudgeError(EspalierError):
    """The comparing process cannot be used at all, so no answer can be scored."""


def math_equivalent(answer: str | None, gold: Iterable[str]) -> bool:
    r"""Whether `answer` means the same as one of the accepted answers.

    Args:
        answer: LaTeX or plain text, of whose `\boxed{...}` the last one counts; None is wrong.
        gold: accepted answers, in the same forms.

    Raises:
        MathJudgeError: math-verify is not installed, or does not start.
    """
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    said = final_answer(answer)
    return bool(said) and any(_same(said, final_answer(accepted)) for accepted in gold)


def _same(answer: str, gold: str) -> bool:
    if answer == gold:
        return True
    said, wanted = read_number(answer), read_number(gold)
    if _names_another_unknown(answer, gold):
        said = wanted = None
    if wanted is not None and _BOUND.match(answer):
        return False  # math-verify would read `>= 72` as 72
    if said is not None and wanted is not None:
        if said.equals(wanted):
            return True
        if "%" not in {said.unit, wanted.unit}:  # 50% is 1/2 as well
            return False
    return _compared(answer, gold)


def _names_another_unknown(answer: str, gold: str) -> bool:
    """Whether one answer is `y = ...` and the other `x = ...`."""
    said, wanted = (UNKNOWN.match(bare_formula(text)) for text in (answer, gold))
    return said is not None and wanted is not None and said[1] != wanted[1]


@lru_cache(maxsize=4096)
def _compared(answer: str, gold: str) -> bool:
    """Return the process's verdict, cached, as trajectories of a group repeat answers."""
    return _judge().compare(_as_latex(answer), _as_latex(gold))


def _as_latex(text: str) -> str:
    return text if _IS_LATEX.search(text) else rf"\boxed{{{text}}}"


@lru_cache(maxsize=1)
def _judge() -> MathJudge:
    """Return the comparing process of this Python process."""
    judge = MathJudge()
    atexit.register(judge.close)
    return judge


class MathJudge:
    """Client of the comparing process: one pair at a time; restarted after a kill.

    Args:
        within_s: limit of a comparison's processor time, seconds.
        reply_within_s: longest wait for its reply, seconds.
    """

    def __init__(
        self, within_s: int = _COMPARE_WITHIN_S, reply_within_s: float = _REPLY_WITHIN_S
    ) -> None:
        self._within_s = within_s
        self._reply_within_s = reply_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def compare(self, answer: str, gold: str) -> bool:
        """Whether math-verify takes the two as equal; False if it does not decide in time.

        Raises:
            MathJudgeError: the process does not start, or is not given its processor time.
        """
        with self._turn:
            process = self._process or self._started()
            request = json.dumps({"answer": answer, "gold": gold}).encode() + b"\n"
            try:
                verdict = _exchange(process, request, self._reply_within_s)
            except TimeoutError as late:
                self.close()
                raise MathJudgeError(
                    f"two answers were not compared within {self._reply_within_s:g} s, of which "
                    f"{self._within_s} s of processor time are enough: give the machine less to do"
                ) from late
            if verdict is None:
                self.close()
            return verdict == b"true"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "espalier.rewards.math_worker", str(self._within_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={},
        )
        try:
            ready = _exchange(self._process, b"", _START_WITHIN_S) == b"ready"
        except TimeoutError:
            ready = False
        if not ready:
            self._process.kill()
            _, said = self._process.communicate()
            self._process = None
            raise MathJudgeError(
                "answers cannot be compared: math-verify does not start "
                f"({said.decode(errors='replace').strip()[-400:]}). Install espalier again"
            )
        return self._process


def _exchange(process: subprocess.Popen[bytes], request: bytes, within_s: float) -> bytes | None:
    """Send a request and return the reply line; None if the process has ended.

    Raises:
        TimeoutError: the process is alive and has not replied.
    """
    assert process.stdin is not None, "the process is started with pipes"
    assert process.stdout is not None, "the process is started with pipes"
    deadline, received = time.monotonic() + within_s, b""
    try:
        process.stdin.write(request)
    except BrokenPipeError:
        return None
    while not received.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            raise TimeoutError
        data = os.read(process.stdout.fileno(), 4096)
        if not data:
            return None
        received += data
    return received.strip()
