# pyright: basic, reportMissingImports=false
"""The process that generates and scores with reasoning-gym and the standard library alone.

It runs under its own Python interpreter, which has other packages than espalier's, and speaks JSON
lines:

    {"generators": true}                             {"generators": {NAME: UPSTREAM_LEVELS, ...}}
    {"items": [NAME, KNOBS, START, COUNT]}           {"items": [[QUESTION, ANSWER], ...]}
    {"levels": [NAME, COUNT]}                        {"levels": [KNOBS, ...]}
    {"score": [NAME, KNOBS, PLACE, QUESTION, ANSWER]}   {"score": 0.0 to 1.0, "right": BOOLEAN}

or `{"refused": REASON}` for a request that cannot be fulfilled, or `{"killed": SIGNAL}` for one
that ended the child. `score` is upstream's; an answer is right if that is 1 and `_STRICTER` agrees.

Upstream's scorers evaluate some answers as Python. Here `eval` accepts only literals, and sympy
only what `arithmetic` accepts; anything else raises, which upstream counts as an unreadable answer.
Requests are served by a forked child with a memory limit, and a limit of processor time for each
request: replacing a killed child costs a fork, but no import.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import resource
import signal
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

SCORE_CPU_S = 2.0
"""Processor time for scoring an answer, so that a busy machine judges like an idle one."""
MAKE_CPU_S = 120.0
"""Processor time for a batch of items; the slowest generator takes some seconds per item."""
WALL_FACTOR = 10
"""A request is ended after this many times its processor time, whatever it waits for."""
MEMORY_BYTES = 3 << 30
CHUNK = 1000
"""Items of one data set; upstream seeds an item with the sum of seed and index."""
MAX_ANSWER_CHARACTERS = 20_000
_MAX_ARITHMETIC_CHARACTERS = 2000

_EVALUATING = (  # modules whose score_answer calls eval on the answer
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
_FUNCTIONS = (
    "sin cos tan cot sec csc sinh cosh tanh asin acos atan asinh acosh atanh exp log ln sqrt Abs pi"
)
_ARITHMETIC = re.compile(
    r"(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?(?![\w.])"
    rf"|(?:{_FUNCTIONS.replace(' ', '|')}|[A-Za-z])(?![\w.])"
    r"|[-+*/^(),\s])*",
    re.ASCII,
)


def arithmetic(text: str) -> str:
    """Return `text` if it is numbers, operators, single letters and functions of calculus.

    Raises:
        ValueError: it is anything else, such as names that sympy would look up in Python.
    """
    if len(text) > _MAX_ARITHMETIC_CHARACTERS or not _ARITHMETIC.fullmatch(text):
        raise ValueError("not arithmetic")
    return text


def guard() -> None:
    """Make the scorers evaluate only literals and arithmetic."""
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    def parsed(text: str, **options: Any) -> object:  # noqa: ANN401 (sympy's)
        return parse_expr(arithmetic(text), **options)

    sympy.parse_expr = parsed
    for name in ("games.puzzle24", "games.countdown"):
        vars(importlib.import_module(f"reasoning_gym.{name}"))["parse_expr"] = parsed
    for name in _EVALUATING:  # a global of the module hides the builtin
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval


def _same_word(answer: str, item: dict) -> bool:
    """Return whether the answer is the gold answer, ignoring case."""
    return answer.strip().lower() == item["answer"].lower()


def _uses_the_numbers(answer: str, item: dict) -> bool:
    """Return whether the answer uses each of the given numbers exactly once."""
    return sorted(map(int, re.findall(r"\d+", answer))) == sorted(item["metadata"]["numbers"])


def _is_finite(answer: str, _item: dict) -> bool:
    """Return whether the answer contains no NaN or infinity, which would be near everything."""
    return not re.search(r"nan|inf", answer, re.IGNORECASE)


def _is_near(answer: str, item: dict) -> bool:
    """Return whether a probability differs from the right one by at most 1 %."""
    right = Fraction(item["answer"])
    return abs(Fraction(answer.replace(",", "")) - right) <= right / 100


_STRICTER = {  # further conditions, where upstream gives a score of 1 to some wrong answers
    "game_of_life_halting": _same_word,  # any text counts as True
    "puzzle24": _uses_the_numbers,  # any four numbers that make 24
    "coin_flip": _is_near,  # 0 is at no distance above the tolerance from a rare event
    "complex_arithmetic": _is_finite,  # "nan" is at no distance above the tolerance
}


_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Keys of the metadata that hold a right answer for items without `answer`."""


def _gold(item: dict) -> str:
    """Return a right answer; empty if upstream reveals none."""
    if item["answer"] is not None:
        return str(item["answer"])
    found = next((item["metadata"][key] for key in _EXAMPLES if key in item["metadata"]), "")
    return found if isinstance(found, str) else json.dumps(found)


_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions of generators and scorers that are handled; any other ends the child, as a signal
does."""


class Refused(Exception):
    """A request that cannot be fulfilled; the message is the reason."""


class _Recent(OrderedDict):
    """A cache of the most recently used values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def get_or_make(self, key: object, make: Callable[[], Any]) -> Any:  # noqa: ANN401
        if key not in self:
            self[key] = make()
            while len(self) > self._most:
                self.popitem(last=False)
        self.move_to_end(key)
        return self[key]


class Server:
    """Answers requests, in the forked child."""

    def __init__(self) -> None:
        self._sets = _Recent(64)
        self._items = _Recent(4096)

    def answer(self, request: dict) -> dict:
        """Return the reply to a request."""
        from reasoning_gym.factory import CURRICULA, DATASETS

        match request:
            case {"generators": _}:
                return {
                    "generators": {
                        name: _levels_of(CURRICULA[name]) if name in CURRICULA else 0
                        for name in sorted(DATASETS)
                        if name != "composite"
                    }
                }
            case {"levels": [name, count]}:
                return {"levels": [_knobs_of(name, level) for level in range(count)]}
            case {"items": [name, knobs, start, count]}:
                _limit(MAKE_CPU_S)
                places = range(start, start + count)
                items = [self._item(name, knobs, place) for place in places]
                return {"items": [[item["question"], _gold(item)] for item in items]}
            case {"score": [name, knobs, place, question, answer]}:
                _limit(MAKE_CPU_S)
                item = self._item(name, knobs, place)
                if item["question"] != question:
                    raise Refused(
                        f"item {place} of {name} is another question here: the task was made by "
                        "another version of reasoning-gym, or with other data"
                    )
                _limit(SCORE_CPU_S)
                score = self._score(name, knobs, place, item, answer)
                stricter = _STRICTER.get(name)
                right = score >= 1 and (stricter is None or stricter(answer, item))
                return {"score": score, "right": right}
        raise Refused("no such request")

    def _item(self, name: str, knobs: dict, place: int) -> dict:
        key = (name, json.dumps(knobs, sort_keys=True), place)
        return self._items.get_or_make(key, lambda: self._made(name, knobs, place))

    def _made(self, name: str, knobs: dict, place: int) -> dict:
        found = self._set(name, knobs, place)
        try:
            return found[place % CHUNK]
        except _FAULTS as error:
            raise Refused(f"{name} makes no item {place} of {knobs}: {error!r}") from error

    def _set(self, name: str, knobs: dict, place: int):  # noqa: ANN202
        from reasoning_gym import create_dataset

        seed = place // CHUNK * CHUNK
        key = (name, json.dumps(knobs, sort_keys=True), seed)
        try:
            return self._sets.get_or_make(
                key, lambda: create_dataset(name, **_typed(name, knobs), seed=seed, size=CHUNK)
            )
        except _FAULTS as error:
            raise Refused(f"{name} refuses the knobs {knobs}: {error!r}") from error

    def _score(self, name: str, knobs: dict, place: int, item: dict, answer: str) -> float:
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return 0.0
        try:
            score = float(self._set(name, knobs, place).score_answer(answer, entry=item))
        except _FAULTS:  # the scorer cannot handle such an answer
            return 0.0
        return score if 0 <= score <= 1 else 0.0


def _typed(name: str, knobs: dict) -> dict:
    """Return parameters with lists as tuples where the generator's own default is a tuple."""
    from reasoning_gym.factory import DATASETS

    _, config = DATASETS[name]
    defaults = vars(config())
    return {
        key: tuple(value) if isinstance(defaults.get(key), tuple) else value
        for key, value in knobs.items()
    }


def _levels_of(curriculum) -> int:  # noqa: ANN001
    return max((len(one.levels) for one in curriculum().attributes.values()), default=0)


def _knobs_of(name: str, level: int) -> dict:
    """Return the parameters that upstream's curriculum sets at a level, from 0."""
    from reasoning_gym.factory import CURRICULA

    if name not in CURRICULA:
        raise Refused(f"{name} has no curriculum upstream; write its levels as knobs")
    curriculum = CURRICULA[name]()
    curriculum.set_global_level(level)
    made = vars(curriculum.generate_configuration())
    fields = set()
    for one in curriculum.attributes.values():
        for key in ("field_name", "lower_field_name", "upper_field_name"):
            fields.add(getattr(one, key, None))
    return {key: made[key] for key in sorted(fields & made.keys())}


def _limit(cpu_s: float) -> None:
    """Let a signal end this process if the request takes longer; handlers are the defaults."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, cpu_s * WALL_FACTOR)


def _serve(requests: int, replies: int) -> None:
    """Serve requests until the pipe ends; runs in the child."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it only writes to pipes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    server = Server()
    with os.fdopen(requests, "rb") as lines, os.fdopen(replies, "wb") as out:
        for line in lines:
            try:
                reply = server.answer(json.loads(line))
            except Refused as reason:
                reply = {"refused": str(reason)}
            _limit(0)
            out.write(json.dumps(reply).encode() + b"\n")
            out.flush()


class _Child:
    """The forked child that serves requests."""

    def __init__(self) -> None:
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(from_parent)
            os.close(to_parent)
            os.close(_OUT)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _serve(to_child, from_child)
            os._exit(0)
        os.close(to_child)
        os.close(from_child)
        self._requests = os.fdopen(from_parent, "wb", buffering=0)
        self._replies = os.fdopen(to_parent, "rb")

    def ask(self, line: bytes) -> bytes:
        """Return the reply, or an empty one if the request killed the child."""
        try:
            self._requests.write(line)
        except BrokenPipeError:
            return b""
        return self._replies.readline()

    def close(self) -> int:
        """Close the pipes and return the child's exit status."""
        self._requests.close()
        self._replies.close()
        return os.waitpid(self._pid, 0)[1]


_OUT = 3
"""Descriptor of the replies; output of libraries goes to standard error."""


def main() -> None:
    """Serve standard input until it ends."""
    os.dup2(1, _OUT)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    sys.set_int_max_str_digits(4300)  # the default, whatever the environment says
    from importlib.metadata import version

    guard()
    child = _Child()
    out = os.fdopen(_OUT, "wb", buffering=0)
    out.write(json.dumps({"ready": version("reasoning-gym")}).encode() + b"\n")
    for line in sys.stdin.buffer:
        reply = child.ask(line)
        if not reply.endswith(b"\n"):
            status = child.close()
            child = _Child()
            reply = json.dumps({"killed": status & 0x7F}).encode() + b"\n"
        out.write(reply)


if __name__ == "__main__":
    main()
