import itertools
import json

import pytest
from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.config import load_profile
from espalier.environments import Family, HasBenchmarks, SimpleFamily, make_task
from espalier.records import FinalAnswer


class Echo(SimpleFamily):
    """Asks for a number; `flaws` of a subclass says what is wrong with it."""

    name = "echo"
    flaws = ()

    def tools(self):
        return ()

    def tasks(self, split, count):
        first = {"train": 0, "dev": 1000, "heldout": 2000}[split]
        if "shared" in self.flaws:
            first = 0
        return [
            make_task(
                self.name, f"say {number}", gold=(str(number),), split=split, source="e",
                key=str(number),
            )
            for number in range(first, first + count)
        ]  # fmt: skip

    def verify(self, task, answer):
        if "lenient" in self.flaws:
            return 1.0
        if "strict" in self.flaws:
            return 0.0
        return float(answer == task.verifier.gold[0])

    def demonstrate(self, task):
        yield FinalAnswer(task.verifier.gold[0], "echo")


class Lenient(Echo):
    flaws = ("lenient",)


class Strict(Echo):
    flaws = ("strict",)


class Shared(Echo):
    flaws = ("shared",)


class Moody(Echo):
    verdicts = itertools.cycle([0.0, 1.0])

    def verify(self, task, answer):
        return next(self.verdicts)


class Untaught(Family):
    """Nobody demonstrates how it is solved."""

    name = "untaught"
    tools, tasks, verify, flaws = Echo.tools, Echo.tasks, Echo.verify, ()


class Alike(Echo):
    """Whatever is asked for, the gold answer is one word."""

    def tasks(self, split, count):
        return [
            task.model_copy(
                update={"verifier": task.verifier.model_copy(update={"gold": ("done",)})}
            )
            for task in super().tasks(split, count)
        ]


class Keyed(Alike):
    """Its gold answers are one word, but not what it calls its answers."""

    flaws = ("lenient",)

    def answer_key(self, task):
        return task.question


class InPairs(Echo):
    """Two tasks after each other have one answer by what the family calls it."""

    def answer_key(self, task):
        return int(task.verifier.gold[0]) // 2

    def verify(self, task, answer):
        return float(answer is not None and int(answer) // 2 == self.answer_key(task))


class TwoOfAKind(Echo):
    """One answer solves the first two tasks, and another the others."""

    def tasks(self, split, count):
        first, second, *others = super().tasks(split, count)
        return [first, second.model_copy(update={"verifier": first.verifier}), *others]


class Public(Echo, HasBenchmarks):
    def read_benchmark(self, path):
        return self.tasks("heldout", len(path.read_text().splitlines()))


def invoked(*arguments):
    return CliRunner().invoke(command_line(), ["environments", *arguments])


def checked(name, *arguments):
    return invoked("check", f"{__name__}:{name}", "--count", "5", "--json", *arguments)


def test_without_a_teacher_a_family_passes_with_a_model(tmp_path):
    done = checked("Untaught")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["accepted"], found["demonstrated"]) == (5, 0)
    path = tmp_path / "own.toml"
    added = invoked("add", f"{__name__}:Untaught", "--out", str(path))
    assert added.exit_code == 0
    assert str(load_profile(path).policy.model) == "smollm2"


def test_a_sound_family_passes_with_its_counts():
    done = checked("Echo")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert found == {
        "family": f"{__name__}:Echo", "tools": [], "tasks": 5, "accepted": 5, "refused": 5,
        "untried": 0, "repeated": 5, "demonstrated": 5, "faults": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Lenient", "the gold answer of"),
        ("Strict", "its own gold answer"),
        ("Strict", "the teacher solves none of 5"),
        ("Shared", "stand in two splits"),
        ("Moody", "its episode differs the second time"),
        ("Strict", "override `Family.gold_script`"),
        ("Alike", "no wrong answer was tried: all 5 tasks have the gold answer 'done'"),
        ("Keyed", "the gold answer of"),
    ],
)
def test_a_flawed_family_fails_and_the_flaw_is_named(name, fault):
    done = checked(name)
    assert done.exit_code == 1
    assert fault in done.stderr


def test_too_few_tasks_for_a_wrong_answer_ask_for_more():
    done = checked("InPairs", "--count", "2")
    assert done.exit_code == 1
    assert "Check more than 2, with a larger --count" in done.stderr
    assert "override" not in done.stderr


def test_more_tasks_or_other_golds_are_advised_apart():
    assert checked("InPairs").exit_code == 0
    assert "or override `Family.answer_key`" in checked("Alike").stderr


@pytest.mark.parametrize(
    ("what", "said"), [("no.toml", "no such profile"), ("no.module:Class", "cannot be loaded")]
)
def test_what_is_neither_profile_nor_family_is_one_message(what, said):
    done = invoked("check", what)
    assert done.exit_code == 1
    assert said in done.stderr


def test_a_public_file_is_checked_and_not_trained_on(tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("one\ntwo\n")
    done = checked("Public", "--tasks", str(rows))
    found = json.loads(done.stdout)
    assert (done.exit_code, found["tasks"], found["demonstrated"]) == (0, 2, 0)


def test_a_profile_is_written_once_for_a_class(tmp_path):
    out = str(tmp_path / "echo.toml")
    command = ["add", f"{__name__}:Echo", "--out", out]
    assert invoked(*command).exit_code == 0
    done = invoked("check", out, "--count", "3", "--set", "seed=1")
    assert done.exit_code == 0, done.output
    assert "cannot be written" in invoked(*command).stderr
    assert "nothing" in invoked("add", "python_math").stderr


@pytest.mark.parametrize("name", ["Alike", "TwoOfAKind"])
def test_tasks_without_a_wrong_answer_to_try_are_counted(name):
    found = json.loads(checked(name).stdout)
    assert found["untried"] == {"Alike": 5, "TwoOfAKind": 0}[name]
    assert found["refused"] == {"Alike": 0, "TwoOfAKind": 5}[name]


@pytest.mark.parametrize(
    ("family", "seed", "count"),
    [
        ("customer_service", 0, 40),
        pytest.param("customer_service", 1, 40, marks=pytest.mark.slow),
        pytest.param("software_repair", 0, 20, marks=pytest.mark.slow),
    ],
)
def test_families_of_states_pass_their_own_check(family, seed, count, tmp_path, request):
    if family == "software_repair":  # whose tests run the policy's patches
        request.getfixturevalue("local_sandboxes")
    path = tmp_path / "own.toml"
    path.write_text(f'seed = {seed}\n[environment]\nname = "{family}"\n')
    done = invoked("check", str(path), "--count", str(count), "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["faults"]) == (0, [])
    assert found["refused"] + found["untried"] == count
    assert found["refused"] >= count // 2
