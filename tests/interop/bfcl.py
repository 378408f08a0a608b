"""Compares the services and checks of `function_calling` with BFCL's own.

    python -m tests.interop.bfcl CHECKOUT [--write]

CHECKOUT is a folder of github.com/ShishirPatil/gorilla (6ea5797), whose code runs in a process of
its own; it needs mpmath. Played side by side, call by call and state by state: the gold calls of
every conversation, and calls whose arguments were spoilt. Judged side by side: conversations with a
call that is dropped, altered, moved or added, and single messages with spoilt calls.
`--write` renews tests/golden/bfcl.json, by which the test suite checks the final states.
"""

import argparse
import copy
import hashlib
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import ToolCall
from espalier_environments.function_calling.answers import answer_fault, gold_calls
from espalier_environments.function_calling.conversations import (
    conversation_fault,
    gold_turns,
    played_turns,
)
from espalier_environments.function_calling.functions import offered_in

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "bfcl_v4"
GOLDEN = ROOT / "tests" / "golden" / "bfcl.json"
PLAYER = Path(__file__).with_name("bfcl_calls.py")
CALLED = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple",
)  # fmt: skip
CALLS_OF_JOB = 12
FREE_TEXT = {
    "message", "status", "result", "notification", "retweet_status", "comment_status",
    "mention_status", "verification_failure", "customer_support_message", "symbol",
}  # fmt: skip
"""Keys of results whose wording is ours."""
ODD = (7, 0, -3, 2.5, True, None, "", "x", "12", [], ["a"], [1, "b"], {}, {"a": 1}, [{}])


def family():
    return family_of(Profile.model_validate({"environment": {"name": "function_calling"}}))


def conversations():
    return family().read_benchmark(SHARED / "BFCL_v4_multi_turn_base.json")


def as_call(call):
    return {"name": call.name, "arguments": call.arguments}


def play_job(task, turns):
    given = {name: task.arguments[name] for name in ("services", "config")}
    return {"kind": "play", **given, "turns": [[as_call(call) for call in turn] for turn in turns]}


def spoilt_plays(tasks, seed, count):
    """Calls of any tool of a conversation's services, with arguments of gold calls, spoilt."""
    dice = random.Random(seed)
    values, by_tool = {}, {}
    for task in tasks:
        for call in (call for turn in gold_turns(task) for call in turn):
            by_tool.setdefault(call.name, []).append(call.arguments)
            for name, value in call.arguments.items():
                values.setdefault(name, []).append(value)
    for _ in range(count):
        task = dice.choice(tasks)
        gold = [call for turn in gold_turns(task) for call in turn]
        tools = offered_in(task).documents
        calls = [
            spoilt_call(dice, document, by_tool, values)
            for document in dice.choices(tools, k=CALLS_OF_JOB)
        ]
        place = dice.randrange(len(calls))
        calls[place:place] = gold  # right ones among them, so that errors meet changed states
        yield task, [calls]


def spoilt_call(dice, document, by_tool, values):
    name = document["name"]
    arguments = copy.deepcopy(dice.choice(by_tool.get(name, [{}])))
    for parameter in document["parameters"]["properties"]:
        if parameter not in arguments or dice.random() < 0.2:
            arguments[parameter] = copy.deepcopy(dice.choice(values.get(parameter, ODD)))
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        spoil(dice, arguments)
    return ToolCall(name=name, arguments=arguments)


def spoil(dice, arguments):
    """Change one argument."""
    if not arguments or dice.random() < 0.1:
        arguments["unasked"] = "1"
        return
    name = dice.choice(list(arguments))
    match dice.randrange(4):
        case 0:
            del arguments[name]
        case 1 if isinstance(arguments[name], str):
            text = arguments[name]
            arguments[name] = dice.choice((text.upper(), f"{text}x", text[1:], f"-{text}.", ""))
        case 2 if type(arguments[name]) in (int, float):
            arguments[name] = dice.choice((arguments[name] + 1, float(arguments[name]), "7"))
        case _:
            arguments[name] = copy.deepcopy(dice.choice(ODD))


def spoilt_conversations(tasks, seed, count):
    """Gold turns with a call that is dropped, altered, moved, doubled or added."""
    dice = random.Random(seed)
    for _ in range(count):
        task = dice.choice(tasks)
        turns = [[*turn] for turn in gold_turns(task)]
        for _ in range(dice.choice((1, 1, 2))):
            change(dice, task, turns)
        yield task, turns


def change(dice, task, turns):
    full = [number for number, turn in enumerate(turns) if turn]
    if not full:
        return
    turn = turns[dice.choice(full)]
    place = dice.randrange(len(turn))
    match dice.randrange(5):
        case 0:
            del turn[place]
        case 1:
            arguments = copy.deepcopy(turn[place].arguments)
            spoil(dice, arguments)
            turn[place] = ToolCall(name=turn[place].name, arguments=arguments)
        case 2:
            dice.choice(turns).append(turn.pop(place))
        case 3:
            turn.insert(place, turn[place])
        case _:
            free = [
                one["name"]
                for one in offered_in(task).documents
                if not one["parameters"]["required"]
            ]
            if free:
                turn.append(ToolCall(name=dice.choice(free)))


def spoilt_messages(tasks, seed, count):
    """Gold calls with an argument spoilt, one dropped or doubled, or those of another task."""
    dice = random.Random(seed)
    for _ in range(count):
        task = dice.choice(tasks)
        calls = [ToolCall(name=name, arguments=it) for name, it in gold_calls(task)]
        match dice.randrange(6):
            case 0:
                calls.append(dice.choice(calls))
            case 1:
                del calls[dice.randrange(len(calls))]
            case 2:
                dice.shuffle(calls)
            case 3:
                other = dice.choice(tasks)
                calls = [ToolCall(name=name, arguments=it) for name, it in gold_calls(other)]
            case _:
                place = dice.randrange(len(calls))
                arguments = copy.deepcopy(calls[place].arguments)
                spoil(dice, arguments)
                calls[place] = ToolCall(name=calls[place].name, arguments=arguments)
        yield task, calls


def message_job(task, calls):
    return {
        "kind": "calls",
        "functions": task.arguments["functions"],
        "calls": [as_call(call) for call in calls],
        "gold": json.loads(task.verifier.gold[0]),
        "category": task.arguments["category"],
    }


def played_upstream(jobs, checkout):
    """What BFCL makes of the jobs of each name."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "jobs.json")
        asked.write_text(json.dumps([*itertools.chain(*jobs.values())]))
        argv = [sys.executable, str(PLAYER), str(checkout), str(asked)]
        told = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    answers = iter(told)
    return {name: [*itertools.islice(answers, len(of))] for name, of in jobs.items()}


def played_here(task, turns):
    found = played_turns(task, turns)
    return {
        "results": [list(turn.results) for turn in found],
        "states": [json.loads(json.dumps(as_state(turn.states))) for turn in found],
    }


def as_state(value):
    """As `bfcl_calls.as_state`: sets as sorted lists, keys as Python's text."""
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {str(key): as_state(one) for key, one in value.items()}
    return [as_state(one) for one in value] if isinstance(value, list) else value


def digest(states):
    """Of the states behind the last turn; 2.0 counts as 2."""
    text = json.dumps(plain(states), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value):
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_error(text):
    return text.startswith(("Error", "error", '{"error"', "[{'error'", "['error", "['Error")) or (
        '"error":' in text and "false" in text
    )


def agrees(here, there):
    """Whether two results say the same, but for the wording."""
    if is_error(here) or is_error(there):
        return is_error(here) == is_error(there)
    if "mpf(" in there or "Decimal(" in there:
        wanted = float(re.search(r"\('([^']*)'\)", there)[1])
        return abs(float(json.loads(here)["result"]) - wanted) <= 1e-2 * max(1.0, abs(wanted))
    try:
        one, other = json.loads(here), json.loads(there)
    except ValueError:
        return here == there
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one == other
    return one.keys() == other.keys() and all(
        one[key] == other[key] or (key in FREE_TEXT and isinstance(one[key], str)) for key in one
    )


def is_known(call):
    """Whether upstream has a logarithm where there is none: of no base, or to no digit."""
    given = call.arguments
    return call.name == "logarithm" and any(
        given.get(name) in (True, 0, -3, None, [], {}) for name in ("value", "base", "precision")
    )


def compare_plays(name, pairs, theirs):
    counted = Counter(jobs=len(pairs))
    for (task, turns), there in zip(pairs, theirs, strict=True):
        here = played_here(task, turns)
        same = here["states"] == there["states"]
        counted["states"] += same
        if not same:
            print(f"{name}: other states: {task.arguments['id']}: {first_difference(here, there)}")
        for turn, ours, upstream in zip(turns, here["results"], there["results"], strict=True):
            for call, one, other in zip(turn, ours, upstream, strict=True):
                counted["calls"] += 1
                counted["known"] += is_known(call)
                counted["agree"] += agrees(one, other) or is_known(call)
                if not agrees(one, other) and not is_known(call):
                    print(f"{name}: {json.dumps(as_call(call))[:200]}: {one[:160]} | {other[:160]}")
    print(f"{name:22}", *(f"{key} {value}" for key, value in counted.items()), flush=True)
    return counted["states"] == counted["jobs"] and counted["agree"] == counted["calls"]


def first_difference(here, there):
    for ours, theirs in zip(here["states"], there["states"], strict=True):
        for service, state in theirs.items():
            for key, value in state.items():
                if ours[service].get(key) != value:
                    return f"{service}.{key}: {ours[service].get(key)} | {value}"[:400]
    return ""


def compare_verdicts(name, verdicts, theirs):
    agree = sum(one == other for one, other in zip(verdicts, theirs, strict=True))
    print(f"{name:22} judged {len(verdicts)} right {sum(theirs)} agree {agree}", flush=True)
    return agree == len(verdicts)


def write_golden(tasks, theirs):
    source = {
        "repo": "ShishirPatil/gorilla",
        "file": "bfcl_eval/eval_checker/multi_turn_eval/func_source_code",
        "function": "execute_multi_turn_func_call",
        "commit": "6ea5797",
        "how": "the gold calls of each row of multi_turn_base, turn by turn",
    }
    expected = {
        task.arguments["id"]: digest(there["states"][-1])[:16]
        for task, there in zip(tasks, theirs, strict=True)
    }
    case = {"name": "multi_turn_base", "source": source, "expected": expected, "tolerance": "exact"}
    golden = {
        "topic": "bfcl",
        "format": 1,
        "conventions": "expected: of each row, the first 16 digits of SHA-256 of the public "
        "attributes of all services behind the last turn, {service: {attribute: value}} as JSON "
        "with sorted keys and without blanks; folders as {name, contents}, files as their text, "
        "sets sorted, and floats that are whole as integers",
    }
    GOLDEN.write_text(f'{json.dumps(golden)[:-1]}, "cases": [\n{json.dumps(case)}\n]}}\n')


def main():
    parser = argparse.ArgumentParser(description="Compare services and checks with BFCL's own.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spoilt", type=int, default=300, help="jobs of each kind")
    options = parser.parse_args()

    talks, texts = conversations(), gold_texts()
    golds = [(task, gold_turns(task)) for task in talks]
    spoilt = [*spoilt_plays(talks, options.seed, options.spoilt)]
    changed = [*spoilt_conversations(talks, options.seed, 2 * options.spoilt)]
    single = [
        task
        for category in CALLED
        for task in family().read_benchmark(SHARED / f"BFCL_v4_{category}.json")
    ]
    messages = [(task, [ToolCall(name=n, arguments=it) for n, it in gold_calls(task)])
                for task in single]  # fmt: skip
    messages += spoilt_messages(single, options.seed, 10 * options.spoilt)
    conversation = {"kind": "conversation"}
    jobs = {
        "gold calls": [play_job(*pair) for pair in golds],
        "spoilt calls": [play_job(*pair) for pair in spoilt],
        "changed conversations": [
            play_job(task, turns) | conversation | {"gold": texts[task.arguments["id"]]}
            for task, turns in changed
        ],
        "messages": [message_job(*pair) for pair in messages],
    }
    theirs = played_upstream(jobs, options.checkout)
    plays = {"gold calls": golds, "spoilt calls": spoilt}
    verdicts = {
        "changed conversations": [
            not conversation_fault(task, played_turns(task, turns)) for task, turns in changed
        ],
        "messages": [not answer_fault(task, calls) for task, calls in messages],
    }
    same = [compare_plays(name, pairs, theirs[name]) for name, pairs in plays.items()]
    same += [compare_verdicts(name, ours, theirs[name]) for name, ours in verdicts.items()]
    if options.write:
        write_golden(talks, theirs["gold calls"])
    return 0 if all(same) else 1


def gold_texts():
    path = SHARED / "possible_answer" / "BFCL_v4_multi_turn_base.json"
    rows = map(json.loads, path.read_text().splitlines())
    return {row["id"]: row["ground_truth"] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
