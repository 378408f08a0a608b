"""Procedural questions: messages, what is handed to sympy, the scorers, and a scorer that lies."""

import json
import os
import re
import types

from espalier_environments.procedural.config import GENERATORS
from espalier_environments.procedural.family import answer_in
from espalier_environments.procedural.generators import Generators, exchange
from espalier_environments.procedural.packages import own_python
from espalier_environments.procedural.worked import worked
from espalier_environments.procedural.worker import arithmetic
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes, changed_json, changed_text, odd_value, written_json
from tests.fuzz.parsers import ParserTarget

_QUESTIONS = {
    "chain_sum": "State the final answer to the following arithmetic problem: 4 - 1 + 7 =",
    "leg_counting": "Your task is to count: how many legs if you have 2 cows, 1 sea slug, 3 ants?",
    "number_filtering": "Keep all numbers larger than 3.5 in this list: ['1', '9', '-2.5']",
    "simple_equations": "Find the value of x in the equation: 3*x + 4 = 19",
}
_PIECES = (
    "<answer>", "</answer>", "1", "-", "/", "[", "]", "{", "}", "'", '"', "\n", " ", "x", "True",
    "nan", "inf", "1e999", "9" * 400, "__import__('os').system('true')", "().__class__",
    "lambda: 1", "**", "9**9**9", "exec", "O_DIRECT", "sqrt(", ")", ",", "\\frac{1}{2}", "\x00",
    "\ud800", "x" * 3000, "\u0663", "None", "0x1f", "01", "->", "...", "|", "#", "sin", "E1",
    "open('/etc/passwd')",
)  # fmt: skip
_FORBIDDEN = re.compile(r"__|['\"\[\]{}:=;@]|lambda|import|[^\x00-\x7f]")
_GOLD = "(the gold answer)"
"""Stands in a message for what the generator says is right."""
_REPLIES = (
    {"score": 1.0, "right": True},
    {"killed": 9},
    {"refused": "no"},
    {"items": [["q", "a"]]},
)


class Puzzles(ParserTarget):
    """The readers of messages, the guard of sympy, the client, and upstream's scorers."""

    name = "puzzles"
    case_s = 60.0
    """A scorer has two seconds of processor time, and the first case starts the process."""

    def __init__(self):
        self._generators = Generators(own_python()) if own_python().is_file() else None
        self._items = {}

    def make(self, dice):
        """An answer to a question, an odd question, or a reply of the process."""
        match dice.randrange(5):
            case 0:
                reply = written_json(dice, changed_json(dice, dice.choice(_REPLIES)))
                reply = changed_bytes(dice, reply) if dice.random() < 0.5 else reply
                return b"reply\n" + reply + dice.choice((b"\n", b"\n", b""))
            case 1:
                name = dice.choice(list(_QUESTIONS))
                question = changed_text(dice, _QUESTIONS[name])
                if dice.random() < 0.3:
                    question = changed_text(dice, question)
                return f"question {name}\n{question}".encode("utf-8", "surrogatepass")
            case _:
                return f"answer {dice.choice(GENERATORS)}\n".encode() + _message(dice)

    def read(self, case):
        """See `ParserTarget`."""
        head, _, body = case.partition(b"\n")
        kind, _, name = head.decode("utf-8", "replace").partition(" ")
        text = body.decode("utf-8", "replace")
        if kind == "reply":
            return _exchanged(body)
        if kind == "question" and name in _QUESTIONS:
            said = worked(name, text, "11")
            if not isinstance(said, str) or not said:
                raise Violation("no thought")
            return f"question {name} {said != 'answer'}"
        if kind == "answer" and name in GENERATORS:
            return self._scored(name, text)
        return "no case"

    def _scored(self, name, text):
        answer = answer_in(text)
        if answer != answer.strip() or len(answer) > len(text):
            raise Violation("an answer that the message does not hold")
        try:
            handed = arithmetic(answer)
        except ValueError:
            handed = ""
        if _FORBIDDEN.search(handed):
            raise Violation(f"sympy would read {handed[:100]!r}")
        if self._generators is None:
            return "answer read, no scorers are installed"
        if name not in self._items:
            (self._items[name],) = self._generators.items(name, {}, range(3, 4))
        item = self._items[name]
        answer = answer.replace(_GOLD, item.gold)
        verdict = self._generators.score(name, {}, 3, item.question, answer)
        if not 0 <= verdict.score <= 1 or (verdict.right and verdict.score < 1):
            raise Violation(f"{verdict} for {name}")
        return f"answer {'right' if verdict.right else 'wrong'}"

    async def check(self):
        """A scorer still knows a right answer, after whatever was scored before."""
        if self._generators is not None:
            (item,) = self._generators.items("chain_sum", {}, range(1))
            verdict = self._generators.score("chain_sum", {}, 0, item.question, item.gold)
            if not verdict.right:
                raise Violation("the gold answer is not right any more")


def _exchanged(written):
    """What the client makes of a process that writes this and ends."""
    reading, writing = os.pipe()
    asking, dropped = os.pipe()
    try:
        os.set_blocking(writing, False)
        os.write(writing, written[:60_000])
        os.close(writing)
        with os.fdopen(reading, "rb", 0) as out, os.fdopen(dropped, "wb", 0) as requests:
            process = types.SimpleNamespace(stdin=requests, stdout=out)
            reply = exchange(process, b"{}\n", 2.0)
    finally:
        os.close(asking)
    if reply is not None and not isinstance(reply, dict):
        raise Violation(f"a reply that is a {type(reply).__name__}")
    return f"reply {'lost' if reply is None else 'read'}"


def _message(dice):
    text = "".join(dice.choice(_PIECES) for _ in range(dice.randrange(10)))
    if dice.random() < 0.15:
        text = dice.choice((_GOLD, f" {_GOLD}\n", f"{_GOLD}{dice.choice(_PIECES)}"))
    if dice.random() < 0.5:
        text = f"so <answer>{text}</answer>"
    if dice.random() < 0.2:
        text = json.dumps(odd_value(dice))
    if dice.random() < 0.01:
        text *= 200
    return text.encode("utf-8", "surrogatepass")
