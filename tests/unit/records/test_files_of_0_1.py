"""Tasks, trajectories, question rows and profiles that version 0.1 wrote."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from espalier.config import load_profile, read_saved_profile
from espalier.evaluation.questions import read_questions
from espalier.evaluation.results import results_table
from espalier.orchestration.finished_run import open_finished_run
from espalier.records import (
    Message,
    ProfileError,
    ToolCall,
    group_of,
    read_tasks,
    shown_group,
    write_tasks,
)
from espalier.records.trajectory import read_trajectories, write_trajectories

PROFILES = Path(__file__).parents[3] / "pipelines" / "profiles"
TASK = {
    "task_id": "train-4f1a0c2d9e7b",
    "prompt": [{"role": "user", "content": "Name the currency of the country of Lyon."}],
    "environment": "search_qa",
    "arguments": {"index": "train"},
    "verifier": {"kind": "exact_match", "gold": ["Euro", "EUR"]},
    "metadata": {
        "family": "chain",
        "split": "train",
        "hops": 2,
        "source": "webshaper",
        "difficulty": None,
        "query": "currency(country({Lyon}))",
        "signature": "currency(country(C))",
        "entities": ["Lyon", "France", "Euro"],
        "evidence": ["city:Lyon", "country:France"],
    },
}
MESSAGES = [
    {"role": "user", "content": "Name the country of Lyon."},
    {"role": "assistant", "content": "<think> country </think> <search> Lyon country </search>"},
    {"role": "tool", "content": "Lyon | country: France"},
    {"role": "assistant", "content": "<think> answer </think> <answer> France </answer>"},
]
CALLS = [
    {
        "name": "search",
        "argument": "Lyon country",
        "result": "Lyon | country: France",
        "succeeded": True,
    }
]


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(TASK) + "\n", encoding="utf-8")
    (task,) = read_tasks(path)
    return task


def test_a_former_task_keeps_its_metadata_under_new_names(task):
    assert task.task_id == TASK["task_id"]
    assert task.arguments == {"index": "train"}
    assert task.verifier.gold == ("Euro", "EUR")
    found = task.metadata
    assert (found.split, found.source) == ("train", "webshaper")
    assert (found.pattern, found.difficulty) == ("currency(country(C))", 2)
    assert task.extra == {
        "kind": "chain",
        "hops": 2,
        "query": "currency(country({Lyon}))",
        "entities": ["Lyon", "France", "Euro"],
        "evidence": ["city:Lyon", "country:France"],
    }


def test_a_former_task_is_written_anew_and_read_the_same(task, tmp_path):
    write_tasks(tmp_path / "again.jsonl", [task])
    assert read_tasks(tmp_path / "again.jsonl") == [task]


@pytest.fixture
def trajectory(tmp_path):
    schema = pa.schema(
        [
            ("task_id", pa.string()),
            ("group_id", pa.string()),
            ("messages", pa.string()),
            ("tool_calls", pa.string()),
            ("reward", pa.string()),
            ("answer", pa.string()),
            ("finish_reason", pa.string()),
            ("policy_version", pa.int64()),
            ("token_ids", pa.list_(pa.int32())),
            ("action_mask", pa.list_(pa.int8())),
            ("behavior_logprobs", pa.list_(pa.float32())),
            ("turns", pa.list_(pa.list_(pa.int32()))),
            ("turn_rewards", pa.list_(pa.float64())),
            ("window_starts", pa.list_(pa.int32())),
            ("detour", pa.string()),
        ]
    )
    row = {
        "task_id": "t",
        "group_id": "t/0",
        "messages": json.dumps(MESSAGES),
        "tool_calls": json.dumps(CALLS),
        "reward": json.dumps({"outcome": 1.0, "format": 0.1}),
        "answer": "France",
        "finish_reason": "answered",
        "policy_version": 3,
        "token_ids": [5, 6, 7, 8, 9],
        "action_mask": [0, 1, 1, 0, 1],
        "behavior_logprobs": [0.0, -0.5, -0.25, 0.0, -1.0],
        "turns": [[1, 3, 4], [4, 5, 5]],
        "turn_rewards": [0.0, 0.0],
        "window_starts": [0],
        "detour": "",
    }
    path = tmp_path / "trajectories.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema=schema), path)
    (trajectory,) = read_trajectories(path)
    return trajectory


def test_a_former_trajectory_keeps_tokens_reward_and_verdict(trajectory):
    assert trajectory.token_ids == (5, 6, 7, 8, 9)
    assert trajectory.action_mask == (0, 1, 1, 0, 1)
    assert trajectory.behavior_logprobs == (0.0, -0.5, -0.25, 0.0, -1.0)
    assert [(t.action_start, t.observation_end) for t in trajectory.turns] == [(1, 4), (4, 5)]
    assert trajectory.total_reward == 1.1
    assert trajectory.is_right
    assert trajectory.answer == "France"


def test_a_former_trajectory_shows_its_messages_as_written(trajectory):
    assert trajectory.messages == tuple(Message(**message) for message in MESSAGES)


def test_a_former_call_has_its_text_as_one_argument(trajectory):
    (result,) = trajectory.tool_results
    assert result.call == ToolCall(name="search", arguments={"argument": "Lyon country"})
    assert (result.content, result.succeeded) == ("Lyon | country: France", True)


def test_a_former_trajectory_is_written_anew_and_read_the_same(trajectory, tmp_path):
    write_trajectories(tmp_path / "again.parquet", [trajectory])
    assert read_trajectories(tmp_path / "again.parquet") == [trajectory]


def test_former_question_rows_are_grouped_by_kind_and_hops(tmp_path):
    rows = [
        {
            "policy": policy,
            "task_id": task_id,
            "hops": hops,
            "family": kind,
            "em": policy == "trained",
            "f1": 0.5,
            "answer": None,
            "gold": "Euro",
            "tool_calls": 2,
            "finish_reason": "answered",
            "samples": 4,
            "samples_right": 1,
        }
        for policy in ("warm_start", "trained")
        for task_id, hops, kind in (("a", 1, "chain"), ("b", 3, "union"))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "questions.parquet")
    found = read_questions(tmp_path / "questions.parquet")
    assert list(found) == ["warm_start", "trained"]
    assert [row.em for row in found["trained"]] == [True, True]
    assert [row.groups for row in found["trained"]] == [
        {"kind": "chain", "hops": "1"},
        {"kind": "union", "hops": "3"},
    ]
    assert (found["trained"][1].samples, found["trained"][1].answer) == (4, None)


def test_former_results_are_shown_by_hops():
    judged = {
        "em": 0.5,
        "ci95": [0.4, 0.6],
        "f1": 0.5,
        "pass_at_1": 0.5,
        "pass_at_4": None,
        "tool_calls": 1.0,
        "by_hops": {"1": {"em": 0.5}, "2": {"em": 0.25}},
        "by_family": {"chain": {"em": 0.5}},
        "finish_reasons": {"answered": 4},
    }
    gain = {"em": 0.0, "ci95": [0.0, 0.0], "baseline": "warm_start"}
    policies = dict.fromkeys(("untrained", "warm_start", "trained"), judged)
    table = results_table({"bootstrap": {"confidence": 0.95}, "eval": {**policies, "gain": gain}})
    assert (table[2]["1 hop %"], table[2]["2 hops %"]) == ("50.0", "25.0")


@pytest.mark.parametrize("kind", ["story", "own"])
def test_former_results_of_mathematics_are_shown_by_steps(kind):
    former = {"by_hops": {"1": {"em": 0.5}, "2": {"em": 0.25}}, "by_family": {kind: {"em": 0.5}}}
    assert shown_group([former]) == ("steps", ["1", "2"])
    assert group_of(former, "steps") == former["by_hops"]
    assert group_of(former, "hops") == {}


def test_a_former_profile_is_read_with_its_moved_keys():
    former = json.loads(Path(__file__).with_name("profile_0_1.json").read_text())
    assert {"micro_batch_tokens", "device", "reward"} <= former["training"].keys()
    profile = read_saved_profile(json.dumps(former))
    changes = ["hardware.micro_batch_tokens=4096", "reward.format=0.2"]
    # there was no choice then
    changes += [
        "policy.prestage.join_share=0",
        "warm_start.renamed_share=0",
        "training.renamed_share=0",
        "curriculum.draw=band",
    ]
    assert profile.policy.prestage.optimizer == "adamw"
    assert profile == load_profile(PROFILES / "arithmetic-smoke.toml", changes)


@pytest.mark.parametrize("odd", [None, 3, "prestage", ["prestage"], {"prestage": None}])
def test_odd_tables_of_a_saved_profile_are_refused(odd):
    for section in ("policy", "warm_start", "curriculum", "environment"):
        with pytest.raises(ValidationError):
            read_saved_profile(json.dumps({section: odd}))


def test_a_run_of_0_1_is_opened(tmp_path):
    former = Path(__file__).with_name("profile_0_1.json").read_text()
    (tmp_path / "profile.json").write_text(former)
    assert open_finished_run(tmp_path).profile == read_saved_profile(former)
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(ProfileError, match="profile JSON"):
        open_finished_run(tmp_path)


def test_a_profile_of_today_is_read_as_it_was_saved():
    profile = load_profile(PROFILES / "tiny.toml")
    assert read_saved_profile(profile.model_dump_json()) == profile


def test_a_saved_profile_is_read_without_its_canary():
    profile = load_profile(PROFILES / "tiny.toml")
    tables = json.loads(profile.model_dump_json())
    tables["serving"]["canary"] = {"steps": [0.1, 0.5, 1.0], "questions": None}
    assert read_saved_profile(json.dumps(tables)) == profile
