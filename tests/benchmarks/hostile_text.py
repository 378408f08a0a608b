"""How long parsers and scorers take for hostile text: `python -m tests.benchmarks.hostile_text`.

What reads a policy's text gets repeated marks in its own frames, in lengths that double up to its
declared bound; where it has one of its own, also four times as much. The marks that are slowest at
an eighth of the bound are measured further. Prints the exponent of time over length, seconds at the
bound and beyond, and the limit of what takes longer by nature, which runs in a process of its own.
The last line is one JSON object.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from espalier.completions import chat, parsed_answer
from espalier.config import Criterion
from espalier.curation.screening import secret_in
from espalier.dialects import SYNTAXES, syntax
from espalier.dialects.control_tokens import control_tokens
from espalier.environments.tools import Tool, ToolError
from espalier.judging import judgement_type
from espalier.records import ToolCall
from espalier.rewards import answers, bfcl, code_match, math_equivalence, result_rows, search_r1
from espalier.rewards import swe_rl as swe
from espalier.rewards.toolrl import toolrl_score
from espalier_environments.code import family, judging
from espalier_environments.code.syntax import bounded_tree
from espalier_environments.customer_service import calculator
from espalier_environments.function_calling import answers as calls
from espalier_environments.function_calling.conversations import Services, written_turns
from espalier_environments.procedural.family import answer_in
from espalier_environments.software_repair.diffs import parsed_diff
from espalier_environments.software_repair.worktree import Worktree
from espalier_environments.sql.runs import read_written_rows
from espalier_environments.web.document import parse_html
from tests.factories.byte_tokenizer import byte_tokenizer
from tests.factories.messages import BOTH

MOVE = '{"name":"mkdir","arguments":{"dir_name":"a"}},{"name":"cd","arguments":{"folder":"a"}},'
MARKS = (
    *"aA1 \n\t([{\"\\'<>`-+.,\u00e9\U0001f600\u0301", "ab ", "a.", "a-", "1,", "1 ", "x@", "[]",
    "{}", "()", '""', '"",', "[1,", "{},", '{"a":', '{"a":1},', "\\boxed{", "\\boxed{1}", "<think>",
    "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<function=f>", "f(),",
    "<parameter=p>", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "f[ARGS]{}", "<|python_tag|>", "**",
    "answer: 1\n", "#### 1 ", "```\n", "```python\n", "```python\ndef f():\n", "<search>",
    "<information>", "</information>", "<|im_start|>assistant\n", "eyJaaaaaaaa-", "password ",
    "x=1\n", "x=x+1;", "if x:\n ", "lambda:", "1+", "f(", "--- a/f\n+++ b/f\n", "@@ -1 +1 @@\n",
    "@@ -1 +1 @@\n a\n", " a\n", "-a\n", "+a\n", "\n<<<<<<< SEARCH\n", "a < b; ", "; Answer: ",
    "Thought: ", "```\n### a\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```\n", MOVE,
    '{"name": "f", "arguments": {}},', '","</tool_call><tool_call>["',
)  # fmt: skip
FILE = "a\n" * 20_000
RUBRIC = judgement_type([Criterion(name="success", question="?")])
GOLD = '<think>a</think>\n<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>'
MOST_S = 5.0  # no further doubling after a text that takes longer
CALL = '[{"name": "f", "arguments": {"a": "~"}}]'
HUNK = "--- a/f\n+++ b/f\n"


class Reader(NamedTuple):
    """A function that reads a policy's text."""

    name: str
    read: Callable[[str], object]
    frames: str = "~"
    """What stands around the marks, whose place is ~; several are separated by a vertical bar."""
    bound: int = syntax.MAX_PARSED_CHARACTERS
    """Its own, or that of a message: a dialect refuses a longer one, and no scorer reads it."""
    own_bound: bool = False
    limit: str = ""


def numbers(values: list[int]) -> str:
    return str(len(values))


def compared(text: str) -> object:
    said = [bfcl.WrittenCall(call.name, call.arguments) for call in calls.said_calls(text)]
    parameters = {"type": "dict", "properties": {"a": {"type": "string"}}}
    return bfcl.calls_fault([{"name": "f", "parameters": parameters}], said, [{"f": {"a": ["x"]}}])


def conversed(text: str) -> object:
    files = Services(["GorillaFileSystem"], {})
    for call in (call for turn in written_turns(text) or () for call in turn):
        files.call(call.name, call.arguments)
    return files.end_turn()


def completion(text: str) -> bytes:
    call = {"id": "x", "function": {"name": "note", "arguments": text}}
    said = {"role": "assistant", "content": text, "tool_calls": [call]}
    return json.dumps({"choices": [{"finish_reason": "stop", "message": said}]}).encode()


def rows(text: str) -> object:
    found, gold = read_written_rows(text), [("a", number) for number in range(200)]
    result_rows.intercode_sql_reward(found, gold)
    return result_rows.rows_match(found, gold, ordered=False)


DIALECT_FRAMES = (
    "~|<think>a</think>~|<think>~|<tool_call>~</tool_call>|[~f()]|[f(a=~)]|~<answer>a</answer>"
    '|<tool_call>{"name": "look_up", "arguments": {"query": "~"}}</tool_call>|[TOOL_CALLS]~'
    "|<tool_call><function=look_up><parameter=query>~</parameter></function></tool_call>"
    '|[TOOL_CALLS]look_up[ARGS]~|{"name": "look_up", "parameters": {"query": ~}}|Thought: ~'
)
READERS = (
    *(Reader(f"dialect {name}", lambda it, own=own: own.parse(it, BOTH), DIALECT_FRAMES,
             own.max_characters, own_bound=True) for name, own in SYNTAXES.items()),
    Reader("control tokens", control_tokens(byte_tokenizer("{{ x }}<|im_start|>")).as_text),
    Reader("chat completion", lambda it: chat.read_reply(completion(it), chat.ToolNames(BOTH)),
           '~|{"q": "~"}', own_bound=True),
    Reader("tool's arguments", lambda it: Tool(numbers).call(ToolCall(
        name="numbers", arguments={"values": syntax.parsed_json(it)}), None), "~|[~1]|[~[]]|[~{}]"),
    Reader("judge's reply", lambda it: parsed_answer(completion(it), RUBRIC),
           "~|```json\n~\n```|  <think>~"),
    Reader("exact match", lambda it: answers.exact_match(it, ["gold"])),
    Reader("token F1", lambda it: answers.token_f1(it, ["gold"])),
    Reader("answer in a text", lambda it: answers.occurs_in("gold", it)),
    Reader("Search-R1", lambda it: search_r1.search_r1_with_form(it, ["gold"]),
           "~|<answer>a</answer><answer>~</answer>"),
    Reader("final answer", math_equivalence.final_answer, "~|answer: ~|\\boxed{~}"),
    Reader("math answer", lambda it: math_equivalence.math_equivalent(it, ["72"]),
           "~|\\boxed{~}|\\frac{~}{2}", 400, own_bound=True, limit="5 s in a process"),
    Reader("patch's likeness", lambda it: swe.patch_likeness({"f": "+" + "ab" * 60}, {"f": it}),
           bound=500, limit="60 s in a process"),
    Reader("ToolRL", lambda it: toolrl_score(it, GOLD), f"~|{GOLD}~|<think>~</think>"),
    Reader("BFCL's call", compared, f"{CALL}|~"),
    Reader("SQL rows", rows, "~|[~[1]]"),
    Reader("program in a message", lambda it: family.program_in(it, "f"), "~|```python\n~"),
    Reader("program's tree", lambda it: code_match.code_parts(bounded_tree(it)),
           "~|x = ~1|x = [~]", judging.MAX_PROGRAM_CHARACTERS),
    Reader("tagged answer", answer_in, "~|<answer>~"),
    Reader("diff", lambda it: Worktree({"f": FILE}).apply(parsed_diff(it)),
           f"~|{HUNK}~|{HUNK}@@ -1,9000 +1,9000 @@\n~"),
    Reader("search and replace", lambda it: swe.changed_files(
        {"a": FILE}, swe.search_replace_blocks(it, tags=False)),
           "~|~\n### a\nb\n<<<<<<< SEARCH\n", bound=200_000, own_bound=True),
    Reader("calls", calls.said_calls, f"~|{CALL}|[~{CALL[1:]}"),
    Reader("turns of calls", conversed, f"~|[{CALL}]|[[~{CALL[1:]}]"),
    Reader("calculator", calculator.calculated, bound=400, own_bound=True),
    Reader("page", parse_html),
    Reader("secrets", secret_in),
)  # fmt: skip


def seconds(reader: Reader, frame: str, mark: str, length: int, repeats: int = 1) -> float:
    """Return the least time for a text of that length; processor time, if it is of this process."""
    clock = time.perf_counter if reader.limit else time.process_time
    text = frame.replace("~", mark * max(1, (length - len(frame)) // len(mark)))
    taken: list[float] = []
    for _ in range(repeats):
        began = clock()
        with suppress(ValueError, SyntaxError, ToolError):  # refused, as the reader says
            reader.read(text)
        taken.append(clock() - began)
    return max(1e-6, min(taken))


def measured(reader: Reader) -> dict[str, Any]:
    """Return the figures of the reader's worst marks."""
    lengths = [reader.bound // part for part in (8, 4, 2, 1)]
    frames = [(frame, mark) for frame in reader.frames.split("|") for mark in MARKS]
    slowest = sorted(frames, key=lambda one: -seconds(reader, *one, lengths[0]))
    worst: dict[str, Any] = {"seconds": 0.0}
    for frame, mark in slowest[:5]:
        times: list[float] = []
        for length in lengths:
            if not times or times[-1] < MOST_S:
                times.append(seconds(reader, frame, mark, length, 1 if reader.limit else 5))
        figures: dict[str, Any] = {
            "exponent": round(math.log2(times[-1] / times[0]) / max(1, len(times) - 1), 2),
            "length": lengths[len(times) - 1], "seconds": times[-1], "limit": reader.limit,
            "beyond_s": seconds(reader, frame, mark, 4 * reader.bound) if reader.own_bound else -1,
            "text": frame.replace("~", mark)[:50],
        }  # fmt: skip
        worst = max(worst, figures, key=lambda one: one["seconds"])
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measure readers with this in their name")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    print(f"{'reader':22}{'exponent':>9}{'length':>8}{'seconds':>9}{'beyond':>9}  worst text")
    for reader in (one for one in READERS if arguments.only in one.name):
        one = figures[reader.name] = measured(reader)
        beyond = "-" if one["beyond_s"] < 0 else f"{one['beyond_s']:.4f}"
        shown = f"{reader.name:22}{one['exponent']:9}{one['length']:8}{one['seconds']:9.4f}"
        print(f"{shown}{beyond:>9}  {one['text']!r} {one['limit']}", flush=True)
    print(json.dumps(figures, sort_keys=True))


if __name__ == "__main__":
    main()
