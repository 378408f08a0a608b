"""Targets in this process: sandboxd's reading of runs, the dialects' reading of policies."""

import json
import signal

from espalier.dialects import SYNTAXES
from espalier.records import FinalAnswer, Malformed, Message, ToolCalls
from sandboxd.wire import Limits, RequestError, RunRequest, parse_run
from tests.factories.messages import BOTH
from tests.fuzz.campaign import Target, Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.unit.dialects.test_hostile_messages import hostile_text

_CEILING = Limits()
_RUNS = (
    {"argv": ["true"], "env": {"A": "b"}, "stdin": "aGk=", "limits": {"wall_s": 1.5}},
    {"code": "print(1)", "session": True},
    {"code": "print(1)", "limits": {"memory_bytes": 1024, "processes": 2, "cpu_s": 1}},
    {"argv": ["sh", "-c", "x"], "limits": None},
)


class ParserTarget(Target):
    """A parser that is called; a hang is interrupted by an alarm."""

    case_s = 5.0

    def read(self, case: bytes) -> str:
        """The outcome."""
        raise NotImplementedError

    async def run(self, case):
        """See `Target`."""
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.case_s)
        try:
            return self.read(case)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class Runs(ParserTarget):
    """`sandboxd.wire.parse_run` and `Limits.parse`."""

    name = "runs"

    def make(self, dice):
        """A body, nearly one of a run."""
        value = changed_json(dice, dice.choice(_RUNS)) if dice.random() < 0.9 else odd_value(dice)
        body = written_json(dice, value)
        return changed_bytes(dice, body) if dice.random() < 0.4 else body

    def read(self, case):
        """See `ParserTarget`."""
        try:
            run = parse_run(case, _CEILING)
        except RequestError as refused:
            return f"refused {_refused(refused)}, limits {_limits(case)}"
        _expect(isinstance(run, RunRequest), "no run")
        _expect(run.limits.within(_CEILING) is run.limits, "limits above the ceiling")
        again = parse_run(run.to_json(), _CEILING)
        _expect(again == run, "a run is not read as it is written")
        return "parsed"


class Calls(ParserTarget):
    """The parsers of all dialects."""

    name = "calls"

    def make(self, dice):
        """The name of a dialect, and a message of a policy."""
        name = dice.choice(list(SYNTAXES))
        text = hostile_text(dice, SYNTAXES[name]).encode("utf-8", "surrogatepass")
        if dice.random() < 0.3:
            text = changed_bytes(dice, text)
        if dice.random() < 0.02:
            text *= dice.choice((10, 300))
        return name.encode() + b"\n" + text

    def read(self, case):
        """See `ParserTarget`."""
        name, _, text = case.partition(b"\n")
        syntax = SYNTAXES.get(name.decode("utf-8", "replace"))
        if syntax is None:
            return "no dialect"
        action = syntax.parse(text.decode("utf-8", "replace"), BOTH)
        _expect(isinstance(action, ToolCalls | FinalAnswer | Malformed), "no action")
        stored = json.dumps(action.message().model_dump(), allow_nan=False, ensure_ascii=False)
        read = Message(**json.loads(stored.encode()))
        _expect(read == action.message(), "a message is not read as it is stored")
        return f"{syntax.name} {type(action).__name__}"


def _refused(refused):
    _expect(400 <= refused.status < 500, f"status {refused.status}")
    _expect(len(str(refused)) < 100_000, "a message as long as the request")
    return refused.status


def _limits(case):
    """What `Limits.parse` makes of the same body."""
    try:
        value = json.loads(case)
    except (ValueError, RecursionError):
        return "no JSON"
    try:
        limits = Limits.parse(value.get("limits", value) if isinstance(value, dict) else value)
    except RequestError:
        return "refused"
    _expect(isinstance(limits, Limits), "no limits")
    return "parsed"


def _expect(holds, what):
    if not holds:
        raise Violation(what)


def _interrupt(*_):
    raise Violation("a parser does not end")
