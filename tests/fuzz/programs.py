"""Programs: files of HumanEval and MBPP, answers, and what a program's process writes."""

import asyncio
import concurrent.futures
import copy
import json
import tempfile
import types
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError
from espalier.rewards.unit_tests import OUTCOME_SPANS, compile_term, unit_test_reward
from espalier.sandbox import ExecResult, Limits
from espalier_environments.code.family import program_in
from espalier_environments.code.inside.program import composed
from espalier_environments.code.inside.values import encode
from espalier_environments.code.judging import judge
from espalier_environments.code.unit_tests import UnitTests, unit_tests_of
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.fuzz.parsers import ParserTarget

_ROWS = {
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": 'import math\n\ndef up(x):\n    return x + 1\n\ndef f(x):\n    """Twice.\n\n'
        '    >>> f(2)\n    4\n    """\n',
        "entry_point": "f",
        "canonical_solution": "    return 2 * x\n",
        "test": "METADATA = {}\n\ndef check(candidate):\n    n = 3\n    assert candidate(n) == 6\n"
        "    for x in (1, 2):\n        assert abs(candidate(x) - 2 * x) < 1e-6\n",
    },
    "mbpp": {
        "task_id": 7,
        "query": "Write f, which doubles.",
        "gold": "import math\r\ndef f(x):\r\n    return 2 * x",
        "tests": ["assert f(1) == 2", "assert math.isclose(f(1.5), 3.0)"],
        "test_setup_code": "",
    },
}
_CODE = (
    "def f(x):\n", "    return x\n", "class A:\n", "f(", ")", "[", "]", "{", "}", "lambda: ", ":",
    "1", "+", "-", " ", "\n", "\t", '"""', "'", "\\", "f'{", "assert f(1) == 2", "import os\n",
    "x", "==", ">>> f(1)\n1\n", "    ", "await ", "yield ", "# \u2028", "\x00", "\ud800", "0x",
    "9" * 5000, "```python\n", "```", "match x:\n", "  case ", ".x", "@", "*", ",",
)  # fmt: skip
_DEEP = ("(", "[", "-", "not ", "x.x", "1+", "x[", "lambda: ", "f(", "{1:", "a if b else ", "x=")
CALLS = ("assert f([1, 2]) == [2, 4]", "assert f('a') == 'aa'", "assert f(2) == {'a': (1, 2.5)}")
_TESTS = UnitTests(functions={"f": "f"}, hidden=CALLS)
_VALUES = ([2, 4], "aa", {"a": (1, 2.5)})


class Programs(ParserTarget):
    """`read_benchmark`, the readers of an answer, and `judge` over a process that lies."""

    name = "programs"

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._family = family_of(Profile.model_validate({"environment": {"name": "code"}}))

    def make(self, dice):
        """A file, a message of a policy, or lines of a program's process."""
        match dice.randrange(3):
            case 0:
                head, body = {"kind": "file"}, _file(dice)
            case 1:
                head, body = {"kind": "answer"}, _source(dice).encode("utf-8", "surrogatepass")
            case _:
                head, body = {"kind": "replies"}, b"\n".join(_lines(dice))
                if dice.random() < 0.2:
                    body = changed_bytes(dice, body)
        return json.dumps(head).encode() + b"\n" + body

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        try:
            kind = json.loads(head)["kind"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return "no case"
        if kind == "file":
            return self._file(body)
        if kind == "answer":
            return _answer(body.decode("utf-8", "surrogatepass" if b"\xed" in body else "replace"))
        return _judged(body)

    def _file(self, body):
        path = Path(self._folder.name) / "tasks.jsonl"
        path.write_bytes(body)
        try:
            tasks = self._family.read_benchmark(path)
        except DataError as refused:
            if len(str(refused)) > 3000:
                raise Violation("a message as long as the file") from refused
            return "file refused"
        for task in tasks:
            tests = unit_tests_of(task)
            found = _verdict(tests, tests.hidden, b"")
            if found.report.all_passed:
                raise Violation("a program that wrote nothing passed")
        return "file read"


def _answer(text):
    program = program_in(text, "f")
    if not isinstance(program, str) or len(program) > len(text):
        raise Violation("a program that is longer than the message")
    if len(program) > 20_000:
        return "answer long"
    said = []
    for prompt in ("", _ROWS["humaneval"]["prompt"]):
        try:
            is_code = isinstance(composed(prompt, program, "f"), types.CodeType)
        except SyntaxError:
            is_code = False
        said.append("compiles" if is_code else "refused")
    return f"answer {' '.join(said)}"


class _Process:
    """A sandbox whose program writes what it is told to."""

    limits = Limits()

    def __init__(self, written):
        self._written = written

    async def run_python(self, _source, *, stdin=b"", timeout_s=0.0, limits=None):
        """See `Sandbox`."""
        return ExecResult(
            stdout=self._written, stderr=b"", exit_status=0, signal=None, killed_by=None,
            truncated=False, duration_s=0.0, cpu_s=0.0, max_rss_bytes=0,
        )  # fmt: skip


def _verdict(tests, statements, written):
    """What `judge` says; files of checks have a judge process, which would write JSON."""
    if written == b"":
        written = json.dumps([False, [["error", ""]] * len(statements)]).encode()
    judging = judge(_Process(written), tests, statements, "pass", timeout_s=1.0)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # this one has a loop that runs
        return thread.submit(asyncio.run, judging).result()


def _judged(body):
    found = _verdict(_TESTS, CALLS, body or b"\n")
    report = found.report
    if len(report.verdicts) != len(CALLS) or len(found.messages) != len(CALLS):
        raise Violation("not one verdict for each test")
    if any(len(message) > 400 for message in found.messages):
        raise Violation("a message as long as the reply")
    for rule, (low, high) in OUTCOME_SPANS.items():
        reward = unit_test_reward(report, rule)
        if not low <= reward <= high or (reward > 0) != report.all_passed:
            raise Violation(f"{rule}: {reward} for {report.verdicts}")
    if abs(compile_term(report, 0.1)) != 0.1:
        raise Violation("the compiler's term")
    _, _, *replies = (*body.splitlines(), *[b""] * 5)
    for verdict, reply, value in zip(report.verdicts, replies, _VALUES, strict=False):
        if verdict == "passed" and _plain(reply) != value:
            raise Violation(f"{reply[:200]!r} passed for {value!r}")
    return f"replies {report.num_passed} of {len(CALLS)}, compiled {report.compiled}"


def _plain(reply):
    """What a reply spells, read by other code than the judge's; None where that is unclear."""
    try:
        return _spelled(json.loads(reply)[1])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _spelled(wire):
    if not isinstance(wire, list):
        return wire
    kind, *parts = wire
    return {
        "i": lambda: int(parts[0], 16), "f": lambda: float.fromhex(parts[0]),
        "l": lambda: [_spelled(part) for part in parts],
        "t": lambda: tuple(_spelled(part) for part in parts),
        "d": lambda: {_spelled(key): _spelled(value) for key, value in parts},
    }[kind]()  # fmt: skip


def _file(dice):
    row = copy.deepcopy(_ROWS[dice.choice(list(_ROWS))])
    for _ in range(dice.choice((0, 1, 1, 2))):
        key = dice.choice([key for key, value in row.items() if isinstance(value, str)])
        text = _source(dice) if dice.random() < 0.5 else _spliced(dice, row[key], _source(dice))
        row[key] = text
    if "tests" in row and dice.random() < 0.4:
        row["tests"] = [_spliced(dice, dice.choice(row["tests"]), _source(dice))]
    if dice.random() < 0.5:
        row = changed_json(dice, row)
    body = written_json(dice, row)
    return changed_bytes(dice, body) if dice.random() < 0.1 else body


def _spliced(dice, text, piece):
    place = dice.randrange(len(text) + 1)
    return text[:place] + piece + text[place + dice.choice((0, 0, 4)) :]


def _source(dice):
    if dice.random() < 0.2:
        return dice.choice(_DEEP) * dice.choice((5, 90, 150, 1100, 4000)) + "1"
    return "".join(dice.choice(_CODE) for _ in range(dice.randrange(14)))


def _lines(dice):
    """Replies: right values, values of another type, or anything."""
    right = [["v", encode(value, lambda _one: 0)] for value in _VALUES]
    replies = [["v", None], ["v", None], *right]
    for _ in range(dice.choice((0, 1, 1, 3))):
        place = dice.randrange(len(replies))
        replies[place] = dice.choice(
            (
                changed_json(dice, replies[place]),
                ["e", "ValueError", "x" * dice.choice((1, 5000))],
                ["v", ["o", 3, "Equal"]],
                ["v", dice.choice((["l", ["i", "2"]], ["i", "f" * 20_000], ["f", "nan"], True))],
                odd_value(dice),
            )
        )
    if dice.random() < 0.2:
        dice.shuffle(replies)
    return [written_json(dice, reply) for reply in replies[: dice.choice((5, 5, 5, 2, 9))]]
