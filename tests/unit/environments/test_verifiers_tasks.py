"""Tasks that are read of a taskset of verifiers: what its lines may hold, and where they go."""

import json
import subprocess
import sys
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import DataError, ProfileError
from espalier_interop.verifiers import TasksetFamily

SYNTHESIS = {"train_tasks": 40, "dev_tasks": 4, "heldout_tasks": 10, "trajectories": 4}
PRINTS = "#!{python} -S\nimport json, sys\nasked = json.loads(sys.argv[3])\n{then}\n"
MANY = """
for place in range(asked["tasks"]):
    print(json.dumps({"prompt": f"question {place % 90}", "answer": str(place)}))
"""


class Asked(TasksetFamily):
    """Shows how to answer: nobody needs that here."""

    name = "asked"

    def tools(self):
        return ()

    def verify(self, task, answer):
        return float(answer == task.arguments["task_data"]["answer"])

    def demonstrate(self, task):
        yield from ()


def family(python, **keys):
    agent = {"score": "posted", "verifiers": {"python": python, "taskset": "mine", **keys}}
    environment = {"name": f"{__name__}:Asked"}
    profile = {"environment": environment, "agent": agent, "synthesis": SYNTHESIS}
    few = {"dev_questions": 4}
    profile |= {"curriculum": {"candidates": 4}, "warm_start": few, "training": few}
    return family_of(Profile.model_validate(profile))


def printing(tmp_path, then, **keys):
    """The family of an interpreter that runs `then` in the place of the bridge."""
    python = tmp_path / "python"
    python.write_text(PRINTS.replace("{python}", sys.executable).replace("{then}", then))
    python.chmod(0o755)
    return family(python, **keys)


def tasks_of(text):
    """The tasks of all splits where the bridge prints `text`."""
    ended = subprocess.CompletedProcess([], 0, text, b"")
    with patch("subprocess.run", return_value=ended):
        return [
            task for tasks in family(sys.executable).tasks_by_split().values() for task in tasks
        ]


def test_tasks_are_dealt_once_with_all_of_their_data(tmp_path):
    asked = printing(tmp_path, MANY)
    found = {split: asked.tasks(split, 1000) for split in ("train", "dev", "heldout")}
    prompts = [task.question for tasks in found.values() for task in tasks]
    assert len(prompts) == len(set(prompts)) == 73, "1.2 times what the train split needs"
    assert all(found.values())
    task = found["train"][0]
    assert task.arguments["task_data"]["prompt"] == task.question
    assert "answer" in task.arguments["task_data"]


def test_system_prompts_and_conversations_become_messages():
    line = {
        "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "system_prompt": "c",
        "image": None,
    }
    (task,) = tasks_of(json.dumps(line).encode())
    assert [(one.role, one.content) for one in task.prompt] == [
        ("system", "c"), ("user", "a"), ("assistant", "b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "nothing", "[]", "{}", '{"prompt": ""}', '{"prompt": "a", "more": Infinity}',
        '{"prompt": []}', '{"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        '{"prompt": [{"role": "nobody", "content": "a"}]}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_task_is_one_error(line):
    with pytest.raises(DataError, match="mine, task 1: "):
        tasks_of(f'{{"prompt": "a"}}\n{line}'.encode())


KEYS = st.sampled_from(["prompt", "system_prompt", "role", "content", "more"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_a_task_or_refused(line):
    with suppress(DataError):
        assert all(task.prompt for task in tasks_of(line))


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ('sys.exit("first\\nno taskset is called mine")', "called mine"),
        ("import time; time.sleep(30)", "within 0.3 s"),
    ],
)
def test_a_taskset_that_cannot_be_read_ends_the_run(tmp_path, then, told):
    keys = {"start_timeout_s": 0.3 if "sleep" in then else 30.0}
    with pytest.raises(ProfileError, match=told):
        printing(tmp_path, then, **keys).tasks("train", 1)
