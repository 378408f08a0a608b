"""Outputs for BFCL: calls of one message, and turns of calls of a conversation."""

import copy

from espalier.records import ToolCall
from espalier_environments.function_calling.answers import gold_calls
from espalier_environments.function_calling.conversations import gold_turns
from espalier_environments.function_calling.functions import offered_in
from tests.interop.inspect_scores.rows import SHARED, Row, family, spread

CALLED = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple",
)  # fmt: skip
UNANSWERABLE = ("irrelevance", "live_irrelevance")
TALKS = "multi_turn_base"


def bfcl(category):
    def read(most):
        tasks = family("function_calling").read_benchmark(
            SHARED / "bfcl_v4" / f"BFCL_v4_{category}.json"
        )
        found = []
        for place, task in spread(list(enumerate(tasks)), most):
            if category == TALKS:
                outputs = talk_outputs(gold_turns(task))
            elif category in UNANSWERABLE:
                document = offered_in(task).documents
                called = [ToolCall(name=str(document[0]["name"]))] if document else []
                outputs = {"no call": [], **({"a call": called} if called else {})}
            else:
                following = tasks[(place + 1) % len(tasks)]
                outputs = call_outputs(task, following)
            found.append(Row(f"bfcl/{category}", task.arguments["id"], {}, task, outputs))
        return found

    return read


def call_outputs(task, following):
    """Gold calls, and gold calls of which the first that can be is altered."""
    gold = _gold(task)
    documents = {str(one["name"]): one["parameters"] for one in offered_in(task).documents}
    outputs = {
        "gold": gold,
        "names without dots": [
            one.model_copy(update={"name": one.name.replace(".", "_")}) for one in gold
        ],
        "no call": [],
        "other gold": _gold(following),
        "doubled": [*gold, gold[-1]],
        "reversed": gold[::-1],
    }  # fmt: skip
    if len(gold) > 1:
        outputs["one dropped"] = gold[:-1]
    for kind, alter in ALTERED.items():
        calls = copy.deepcopy(gold)
        if any(alter(call.arguments, documents[call.name]) for call in calls):
            outputs[kind] = calls
    return outputs


def _gold(task):
    return [ToolCall(name=name, arguments=given) for name, given in gold_calls(task)]


def _of_type(kinds, change):
    """Changes the first argument of such a type; says whether there was one."""

    def alter(arguments, _parameters):
        for name, value in arguments.items():
            if type(value) in kinds and (changed := change(value)) is not None:
                arguments[name] = changed
                return True
        return False

    return alter


def _unasked(arguments, _parameters):
    arguments["unasked"] = 1
    return True


def _without(required):
    def alter(arguments, parameters):
        for name in list(arguments):
            if (name in parameters.get("required", ())) is required:
                del arguments[name]
                return True
        return False

    return alter


def _with_default(arguments, parameters):
    for name, one in parameters["properties"].items():
        if name not in arguments and one.get("default") is not None:
            arguments[name] = one["default"]
            return True
    return False


ALTERED = {
    "text in capitals": _of_type({str}, str.upper),
    "text with a full stop": _of_type({str}, lambda one: f"{one}."),
    "other text": _of_type({str}, lambda one: f"un{one}"),
    "number plus one": _of_type({int, float}, lambda one: one + 1),
    "whole number with .0": _of_type({int}, float),
    "number without .0": _of_type({float}, lambda one: int(one) if one.is_integer() else None),
    "number as text": _of_type({int, float}, str),
    "switch flipped": _of_type({bool}, lambda one: not one),
    "switch as number": _of_type({bool}, int),
    "list emptied": _of_type({list}, lambda one: [] if one else None),
    "list reversed": _of_type({list}, lambda one: one[::-1] if one != one[::-1] else None),
    "list in text": _of_type({list}, str),
    "unknown parameter": _unasked,
    "required one left out": _without(required=True),
    "optional one left out": _without(required=False),
    "optional one at its default": _with_default,
}


def talk_outputs(gold):
    """Turns of calls: gold ones, and with one call dropped, moved, doubled, altered or added."""
    filled = [place for place, turn in enumerate(gold) if turn]
    first, last = filled[0], filled[-1]
    outputs = {"gold": gold, "no call": [[] for _ in gold]}

    def changed(kind, change):
        turns = copy.deepcopy(gold)
        if change(turns) is not False:
            outputs[kind] = turns

    changed("first dropped", lambda turns: turns[first].pop(0))
    changed("last dropped", lambda turns: turns[last].pop())
    changed("last doubled", lambda turns: turns[last].append(turns[last][-1]))
    changed("last turn early", lambda turns: _merge(turns, last, last - 1) if last else False)
    changed("first turn late", lambda turns: _merge(turns, first, first + 1, front=True))
    changed("unknown tool added", lambda turns: turns[last].append(ToolCall(name="unheard_of")))
    changed("argument altered", lambda turns: _alter_last(turns[last]))
    return outputs


def _merge(turns, source, target, *, front=False):
    if target >= len(turns):
        return False
    moved, turns[source] = turns[source], []
    turns[target] = [*moved, *turns[target]] if front else [*turns[target], *moved]
    return True


def _alter_last(calls):
    for call in reversed(calls):
        for name, value in call.arguments.items():
            call.arguments[name] = f"un{value}" if isinstance(value, str) else 987
            return True
    return False
