"""Targets in this process: readers of runs, policies, judges, transcripts and traces."""

import json
import signal
import tempfile
from pathlib import Path

from espalier.completions import ModelRefusal, parsed_answer
from espalier.config import Criterion
from espalier.dialects import SYNTAXES
from espalier.dialects.dialect import Dialect
from espalier.judging import judgement_type
from espalier.records import DataError, FinalAnswer, Malformed, Message, ToolCalls
from espalier.rewards.final_lines import answer_line, dapo_reward
from espalier.rewards.search_r1 import search_r1_with_form, transcript_form
from espalier.training.own_traces import encode_trace, read_demonstrations, read_pairs
from sandboxd.wire import Limits, RequestError, RunRequest, parse_run
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.messages import BOTH
from tests.fuzz.campaign import Target, Violation
from tests.fuzz.mutations import changed_bytes, changed_json, odd_value, written_json
from tests.unit.dialects.test_drift import STEADY
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


def _called(name, arguments):
    function = {"name": name, "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return {"role": "assistant", "content": "<think>so</think>", "tool_calls": [call]}


_ASKED = {"role": "user", "content": "Where is Lyon?"}
_TOLD = {"role": "tool", "tool_call_id": "c1", "content": "Lyon: France </tool_response>"}
_SAID = {"role": "assistant", "content": "France", "reasoning_content": "so", "weight": 1}
_SHOWN = [_ASKED, _called("look_up", '{"query": "Lyon"}'), _TOLD, _SAID]
_OFFERED = {"type": "function", "function": {"name": "look_up", "parameters": {}, "strict": True}}
_ROWS = {
    b"demonstrations": (
        {"messages": [{"role": "system", "content": "Be brief."}, *_SHOWN], "tools": [_OFFERED]},
        {"messages": [_ASKED, _called("note", {"text": "x", "data": None}), _TOLD, _SAID]},
        {"prompt": [_ASKED], "completion": _SHOWN[1:], "tools": json.dumps([_OFFERED])},
    ),
    b"pairs": (
        {"prompt": "Where is Lyon?", "chosen": "<answer> France </answer>", "rejected": "Spain"},
        {"prompt": [_ASKED], "chosen": _SHOWN[1:], "rejected": [_SAID]},
        {"chosen": _SHOWN, "rejected": [_ASKED, _SAID]},
    ),
}


class Traces(ParserTarget):
    """The user's own demonstrations and pairs, and their tokens in two dialects."""

    name = "traces"

    def __init__(self):
        given = Dialect(byte_tokenizer(STEADY, ("<|im_start|>", "<|im_end|>")), BOTH)
        self._dialects = (given, Dialect(given.tokenizer, BOTH, name="tags"))
        self._folder = tempfile.TemporaryDirectory()

    def make(self, dice):
        """The kind of a file, and a line of it."""
        kind = dice.choice(list(_ROWS))
        value = dice.choice(_ROWS[kind])
        for _ in range(dice.randrange(3)):
            value = changed_json(dice, value)
        line = written_json(dice, value if dice.random() < 0.95 else odd_value(dice))
        return kind + b"\n" + (changed_bytes(dice, line) if dice.random() < 0.2 else line)

    def read(self, case):
        """See `ParserTarget`."""
        kind, _, line = case.partition(b"\n")
        path = Path(self._folder.name) / "rows.jsonl"
        path.write_bytes(line)
        try:
            if kind == b"pairs":
                traces = [trace for pair in read_pairs(path) for trace in pair]
            else:
                traces = read_demonstrations(path)
            sequences = [encode_trace(one, it) for it in self._dialects for one in traces]
        except DataError as refused:
            _expect(str(refused).startswith(f"{path}"), "the file is not named")
            _expect(len(str(refused)) < 100_000, "a message as long as the row")
            return "refused"
        for one in sequences:
            _expect(len(one.token_ids) == len(one.loss_mask), "a mask of another length")
            _expect(1 in one.loss_mask, "nothing is learned")
            _expect(one.loss_mask[0] == 0, "the first token is learned")
        return "read"


_RUBRIC = (
    Criterion(name="success", question="Right?"),
    Criterion(name="grounded", question="Shown?", weight=0.5),
)
_JUDGEMENT = {"reasoning": "it is so", "holds_success": True, "holds_grounded": False}


class Judgements(ParserTarget):
    """What judges answer, as the body of a chat completion."""

    name = "judgements"

    def make(self, dice):
        """A completion, nearly one with a judgement."""
        value = changed_json(dice, _JUDGEMENT) if dice.random() < 0.8 else dict(_JUDGEMENT)
        content = written_json(dice, value).decode("utf-8", "replace")
        if dice.random() < 0.3:
            content = dice.choice(("<think>x</think>", "```json\n", "Sure: ")) + content
        reply = {"choices": [{"finish_reason": "stop", "message": {"content": content}}]}
        if dice.random() < 0.3:
            reply = changed_json(dice, reply)
        body = written_json(dice, reply)
        return changed_bytes(dice, body) if dice.random() < 0.3 else body

    def read(self, case):
        """See `ParserTarget`."""
        answer = parsed_answer(case, judgement_type(_RUBRIC))
        if isinstance(answer, ModelRefusal):
            return f"refused {answer.reason}"
        votes = answer.votes(_RUBRIC)
        _expect(set(votes) == {"success", "grounded"}, "a vote is missing")
        _expect(all(isinstance(vote, bool) for vote in votes.values()), "a vote is no bool")
        return "judged"


_PIECES = (
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>",
    "</answer>", "<|im_start|>assistant", "Answer: ", "\\boxed{", "{", "}", "####", "7", " ",
    "Paris", "\n", "$", "=",
)  # fmt: skip


class Transcripts(ParserTarget):
    """The extractors of answers from whole transcripts."""

    name = "transcripts"

    def make(self, dice):
        """Tags and words in any order."""
        text = "".join(dice.choice(_PIECES) for _ in range(dice.randrange(60))).encode()
        if dice.random() < 0.02:
            text *= 2000
        return changed_bytes(dice, text) if dice.random() < 0.3 else text

    def read(self, case):
        """See `ParserTarget`."""
        text = case.decode("utf-8", "replace")
        form = transcript_form(text)
        score = search_r1_with_form(text, ["7"])
        _expect(0 <= score <= 1, f"score {score}")
        _expect(score < 1 or form.is_valid, "a wrong form is paid in full")
        _expect(dapo_reward(text, "7", boxed=True) in (1, -1), "DAPO's outcome")
        line = answer_line(text)
        _expect(line is None or line.strip() == line != "", "an answer of spaces")
        return f"{'valid' if form.is_valid else 'faulty'} {score:g}"


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
