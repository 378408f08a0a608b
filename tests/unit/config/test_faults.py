"""A wrong value of a profile is one line: its key, what is allowed, and what it is."""

from pathlib import Path

import pytest

from espalier.config import parse_profile, parsed_override
from espalier.records import ProfileError

DIALECTS = "'tags', 'react', 'hermes', 'llama3', 'mistral', 'qwen3_coder' or 'pythonic', or 'auto'"


def faults_of(section, key, value):
    with pytest.raises(ProfileError) as caught:
        parse_profile({section: {key: value}}, [], Path("own.toml"))
    first, *lines = str(caught.value).splitlines()
    assert first == f"own.toml: {len(lines)} fault(s) in the profile"
    return [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("section", "key", "value", "line"),
    [
        ("policy", "dialect", 7, f"Input should be {DIALECTS}, or a valid string (it is 7)"),
        ("policy", "dialect", ["a"],
         f'Input should be {DIALECTS}, or a valid string (it is ["a"])'),
        ("warm_start", "steps", True, "write a number, not true"),
        ("training", "temperature", False, "write a number, not false"),
        ("synthesis", "chain_weights", [0.2, True, 0.3, 0.1], "write a number, not true"),
        ("curation", "weights", {"search": True}, "write a number, not true"),
        ("warm_start", "steps", "many", "Input should be a valid integer, unable to parse string "
         'as an integer (it is "many")'),
        ("rollout", "engine", "tgi", "Input should be 'lockstep' or 'vllm' (it is \"tgi\")"),
        ("hardware", "device", 3, "Input should be a valid string (it is 3)"),
        ("training", "algorithm", "grpo", 'Input should be a section (it is "grpo")'),
        ("knowledge", "path", 5, "Input should be a path (it is 5)"),
        ("training", "renamed_share", 2, "Input should be less than or equal to 1 (it is 2)"),
        ("registry", "must_not_fall", "a", 'Input should be a valid array (it is "a")'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line(section, key, value, line):
    assert faults_of(section, key, value) == [f"{section}.{key}: {line}"]


def test_a_switch_for_a_number_of_the_profile_is_named():
    with pytest.raises(ProfileError, match="--set seed: write a number, not true"):
        parse_profile({}, [parsed_override("seed=true")], Path("own.toml"))


def test_members_of_a_union_are_one_line_per_key():
    engine = {"max_model_len": [1], "dtype": [1]}
    kinds = "a valid boolean, or a valid integer, or a valid number, or a valid string (it is [1])"
    assert faults_of("teacher", "vllm", {"engine": engine}) == [
        f"teacher.vllm.engine.{key}: Input should be {kinds}" for key in engine
    ]


def test_equal_faults_of_two_keys_stay_two_lines():
    lines = faults_of("training", "algorithm", {"loss": "x", "advantage": "x"})
    assert {line.partition(":")[0] for line in lines} == {
        "training.algorithm.loss", "training.algorithm.advantage",
    }  # fmt: skip


def test_a_long_value_is_cut():
    (line,) = faults_of("rollout", "engine", "v" * 5000)
    assert len(line) < 200
