"""Public rows of BFCL, API-Bank and ToolRL: their golds, and what must not pass for them."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import pytest

from espalier.config import Profile
from espalier.environments import check_golds, family_of
from espalier.records import ToolCall
from espalier_environments.function_calling.conversations import (
    conversation_fault,
    gold_turns,
    played_turns,
)
from tests.golden_cases import golden_cases

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
UNSOLVABLE = {
    "live_multiple_862-181-3": "it accepts a parameter that the function does not have",
    "live_simple_106-63-0": "it accepts no value of a required parameter",
}
"""Rows that no answer solves, and why."""
DROPPED = {("multi_turn_base_113", "get_watchlist"): "a call before it said the same"}
ALTERED = {
    ("multi_turn_base_111", "add_to_watchlist"): "what is watched is watched already",
    ("multi_turn_base_135", "add_to_watchlist"): "what is watched is watched already",
}
"""Row and gold call that upstream's check does not miss either, and why."""
CONVERSATIONS = "bfcl_v4/BFCL_v4_multi_turn_base.json"
ROWS = {
    "bfcl_v4/BFCL_v4_simple_python.json": 195,
    "bfcl_v4/BFCL_v4_multiple.json": 106,
    "bfcl_v4/BFCL_v4_parallel.json": 95,
    "bfcl_v4/BFCL_v4_parallel_multiple.json": 104,
    "bfcl_v4/BFCL_v4_live_simple.json": 125,
    "bfcl_v4/BFCL_v4_live_multiple.json": 529,
    CONVERSATIONS: 86,
    "api_bank/level-1-api_processed.json": 229,
    "api_bank/level-2-api_processed.json": 38,
    "api_bank/level-3-api_processed.json": 81,
    "toolrl_rlla/rlla_sft.json": 200,
    "toolrl_rlla/test.parquet": 36,
}
IRRELEVANT = {
    "bfcl_v4/BFCL_v4_irrelevance.json": 130,
    "bfcl_v4/BFCL_v4_live_irrelevance.json": 421,
}
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")
FAMILY = family_of(
    Profile.model_validate(
        {"environment": {"name": "function_calling"}, "episode": {"max_turns": 64}}
    )
)


@lru_cache
def tasks_of(name):
    return FAMILY.read_benchmark(DATA / name)


def checked(name):
    with FAMILY.benchmark_environments(DATA / name, Path("unused")) as environments:
        return check_golds(FAMILY, tasks_of(name), environments)


@pytest.mark.parametrize(("name", "rows"), ROWS.items())
def test_golds_are_right_and_those_of_others_wrong(name, rows):
    tasks = tasks_of(name)
    found = checked(name)
    ids = {task.task_id: task.arguments["id"] for task in tasks}
    assert len(tasks) == rows
    assert {ids[fault.task_id] for fault in found.faults} <= UNSOLVABLE.keys()
    assert found.refused == rows


@pytest.mark.parametrize(("name", "rows"), IRRELEVANT.items())
def test_any_call_is_wrong_where_nothing_fits(name, rows):
    tasks = tasks_of(name)
    assert len(tasks) == checked(name).accepted == rows
    for task in tasks:
        for called in (*(spec.name for spec in FAMILY.specs_of(task)), "unknown"):
            assert FAMILY.verify(task, json.dumps([{"name": called, "arguments": {}}])) == 0


def test_final_states_equal_those_of_upstreams_services():
    (case,) = golden_cases("bfcl")
    found = {
        task.arguments["id"]: _digest(played_turns(task, gold_turns(task))[-1].states)[:16]
        for task in tasks_of(CONVERSATIONS)
    }
    assert found == case["expected"]


def test_a_dropped_or_altered_call_fails_where_anything_tells():
    passed = {"dropped": set(), "altered": set()}
    for task in tasks_of(CONVERSATIONS):
        for number, turn in enumerate(gold_turns(task)):
            for place, call in enumerate(turn):
                before, after = turn[:place], turn[place + 1 :]
                for how, calls in (("dropped", []), ("altered", _altered(call))):
                    turns = gold_turns(task)
                    turns[number] = [*before, *calls, *after]
                    told = how == "altered" and not calls
                    if not told and not conversation_fault(task, played_turns(task, turns)):
                        passed[how].add((task.arguments["id"], call.name))
    assert passed == {"dropped": DROPPED.keys(), "altered": ALTERED.keys()}


def _altered(call):
    """The call with another text in the place of its first one, if it has a text."""
    for name, value in call.arguments.items():
        if isinstance(value, str):
            altered = {**call.arguments, name: f"{value} altered"}
            return [ToolCall(name=call.name, arguments=altered)]
    return []


def _digest(states):
    text = json.dumps(_plain(states), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value):
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
