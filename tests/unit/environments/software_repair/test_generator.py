"""Made repositories: disjoint splits, faults that tests notice, logs of training alone."""

import random

import pytest

from espalier.config import Profile, SplitsConfig
from espalier.environments import family_of
from espalier_environments.software_repair.config import RepositoriesConfig
from espalier_environments.software_repair.made_tasks import made_tasks


@pytest.fixture(scope="module")
def tasks():
    config = RepositoriesConfig()
    splits = ("train", "dev", "heldout")
    return {s: made_tasks(config, SplitsConfig(), s, 60, "software_repair") for s in splits}


def run(files, case):
    """What a call returns, by way of the files."""
    names = {}
    code = [text for path, text in files.items() if path.endswith(".py") and "/" not in path]
    lines = "\n".join(code).split("\n")
    exec("\n".join(line for line in lines if not line.startswith("from ")), names)
    try:
        return repr(eval(f"{case[1]}({case[2]})", names))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"raises {type(error).__name__}"


def test_no_split_has_a_name_of_another(tasks):
    names = [{name for task in own for name in task.extra["entities"]} for own in tasks.values()]
    assert sum(map(len, names)) == len(set.union(*names))
    assert len({task.task_id for own in tasks.values() for task in own}) == 180
    again = made_tasks(RepositoriesConfig(), SplitsConfig(), "dev", 20, "software_repair")
    assert again == tasks["dev"][:20], "equal settings make equal tasks"


def test_hidden_tests_notice_the_fault_and_the_fix(tasks):
    for task in tasks["dev"][:20]:
        files, fault = task.arguments["files"], task.arguments["fault"]
        lines = files[fault["path"]].split("\n")
        lines[fault["line"] - 1] = fault["right"]
        fixed = {**files, fault["path"]: "\n".join(lines)}
        failing = set(task.arguments["fail_to_pass"])
        for case in task.arguments["cases"]:
            name = f"{case[0]}.{case[1]}({case[2]})"
            assert (run(files, case) == case[3]) == (name not in failing)
            assert run(fixed, case) == case[3]


def test_logs_are_of_training_repositories_alone(tasks):
    settings = {"name": "software_repair", "shell": False, "sandbox": {"packages": [], "size": 1}}
    family = family_of(Profile.model_validate({"environment": settings}))
    material = family.reading_material(None, [])
    prompts = {material.write(random.Random(n)).prompt for n in range(200)}
    heldout = {name for task in tasks["heldout"] for name in task.extra["entities"]}
    assert not {prompt.partition("(")[0] for prompt in prompts} & heldout
    assert material.write(random.Random(7)) == material.write(random.Random(7))
