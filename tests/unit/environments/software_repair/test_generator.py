"""Made repositories: disjoint splits, faults that tests notice, logs of training alone."""

import ast
import random

import pytest

from espalier.config import Profile, SplitsConfig
from espalier.environments import family_of
from espalier_environments.software_repair.config import RepositoriesConfig
from espalier_environments.software_repair.made_tasks import made_tasks
from espalier_environments.software_repair.mutations import mutations

SETTINGS = {"name": "software_repair", "shell": False, "sandbox": {"packages": [], "size": 1}}


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
    names = {s: {n for t in own for n in t.extra["entities"]} for s, own in tasks.items()}
    assert not names["train"] & names["heldout"]
    assert not names["train"] & names["dev"]
    assert not names["dev"] & names["heldout"]
    assert len({task.task_id for own in tasks.values() for task in own}) == 180


def test_a_repository_is_no_toy(tasks):
    for task in tasks["heldout"]:
        files = task.arguments["files"]
        assert len([path for path in files if path.endswith(".py")]) >= 5
        assert len(task.arguments["cases"]) >= 20
        assert len(task.arguments["fail_to_pass"]) >= 3
        assert task.arguments["pass_to_pass"]


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


def test_equal_settings_make_equal_tasks(tasks):
    again = made_tasks(RepositoriesConfig(), SplitsConfig(), "dev", 20, "software_repair")
    assert again == tasks["dev"][:20]


@pytest.mark.parametrize(
    ("line", "kind", "wrong"),
    [
        ("v += a", "operator", "v -= a"),
        ("v = min(v, a)", "call", "v = max(v, a)"),
        ("v = a - v", "swapped", "v = v - a"),
        ("v = v[:3]", "slice", "v = v[3:]"),
        ("v //= 4", "off_by_one", "v //= 5"),
        ("v = v + a", "name", "v = v + b"),
        ("v = [n for n in v if n > a]", "comparison", "v = [n for n in v if n < a]"),
    ],
)
def test_an_operator_changes_one_line(line, kind, wrong):
    source = ast.unparse(ast.parse(f"def f(v, a, b):\n    '''doc'''\n    {line}\n    return v"))
    found = mutations(source, [kind])
    assert wrong in [one.wrong.strip() for one in found]
    assert all(one.right.strip() == line and one.line == 2 for one in found if one.line == 2)


def test_a_missing_branch_is_one_line():
    source = 'def f(v):\n    """doc"""\n    if v < 3:\n        return 0\n    return v'
    (found,) = mutations(source, ["branch"])
    assert (found.line, found.right, found.wrong) == (3, "        return 0", "        pass")


def test_logs_are_of_training_repositories_alone(tasks):
    family = family_of(Profile.model_validate({"environment": SETTINGS}))
    material = family.reading_material(None, [])
    prompts = {material.write(random.Random(n)).prompt for n in range(200)}
    heldout = {name for task in tasks["heldout"] for name in task.extra["entities"]}
    assert not {prompt.partition("(")[0] for prompt in prompts} & heldout
    assert material.write(random.Random(7)) == material.write(random.Random(7))
