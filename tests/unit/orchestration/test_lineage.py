"""What a policy was trained on is found in the run around it, and compared with another run's."""

import json

import pytest

from espalier.chain import OWN_QUESTIONS
from espalier.config import Profile
from espalier.environments import family_of
from espalier.evaluation.contamination import SuitePrints, contamination
from espalier.orchestration.finished_run import open_finished_run
from espalier.orchestration.lineage import lineage_of_run, training_of_directory
from espalier.records import (
    Provenance,
    RegistryError,
    publishing,
    read_manifest,
    write_tasks,
)
from tests.factories.sums import Sums


def a_run(folder, *, train, heldout, further=None, asked=(), made_from=None, **policy):
    """A run whose policy was made from its accepted tasks; tasks are numbers of sums.

    `asked` are questions of its own demonstrations.
    """

    def tasks(numbers, split):
        return [family._task(f"{n} + {n}", str(2 * n), split) for n in numbers]

    profile = Profile.model_validate({"environment": {"name": Sums.name}, "policy": policy})
    folder.mkdir()
    (folder / "profile.json").write_text(profile.model_dump_json())
    family = family_of(profile)
    origin = Provenance(producer="validate", config_digest="c", seed=0)
    with publishing(folder / "accepted", origin) as draft:
        (draft.path / "tasks").mkdir()
        for split, numbers in (("train", train), ("dev", [900]), ("heldout", heldout)):
            write_tasks(draft.path / "tasks" / f"{split}.jsonl", tasks(numbers, split))
    inputs = {"accepted": made_from or read_manifest(folder / "accepted").content}
    with publishing(folder / "trained_policy", origin.model_copy(update={"inputs": inputs})) as d:
        (d.path / "policy").mkdir()
        (d.path / "policy" / "config.json").write_text("{}")
        for name, numbers in (further or {}).items():
            (d.path / name).mkdir()
            write_tasks(d.path / name / "tasks.jsonl", tasks(numbers, "train"))
        if asked:
            (d.path / OWN_QUESTIONS).parent.mkdir()
            (d.path / OWN_QUESTIONS).write_text("".join(json.dumps(it) + "\n" for it in asked))
    return folder / "trained_policy" / "policy"


def found(policy_dir, run_dir):
    run = open_finished_run(run_dir)
    suite = lineage_of_run(run, run_dir / "trained_policy").heldout
    assert isinstance(suite, SuitePrints)
    return contamination(
        training_of_directory(policy_dir), suite, run.profile.evaluation.contamination
    )


def test_what_another_run_trained_on_is_found(tmp_path):
    own = a_run(tmp_path / "a", train=[0, 1], heldout=[2, 3, 4, 5])
    other = a_run(tmp_path / "b", train=[4, 5], heldout=[0, 1])
    assert found(own, tmp_path / "a").tasks == {}
    seen = found(other, tmp_path / "a")
    assert (len(seen.tasks), seen.state) == (2, "checked")


def test_tasks_and_questions_that_came_up_in_training_count(tmp_path):
    a_run(tmp_path / "a", train=[0, 1], heldout=[2, 3, 4, 5])
    further = {"hindsight": [3], "posed": [4, 9]}
    other = a_run(tmp_path / "b", train=[5], heldout=[0], further=further)
    seen = found(other, tmp_path / "a")
    assert (len(seen.tasks), seen.state) == (3, "checked")
    (tmp_path / "b" / "trained_policy" / "posed" / "tasks.jsonl").write_text("")
    (unknown,) = training_of_directory(other).unknown
    assert "posed/tasks.jsonl" in unknown
    asked = ["What is 3 + 3?", "And what of it?"]
    seen = found(a_run(tmp_path / "c", train=[5], heldout=[0], asked=asked), tmp_path / "a")
    assert (seen.counts, seen.state) == ({"question": 2}, "checked")


@pytest.mark.parametrize(
    ("fields", "said"), [({"made_from": "other"}, "are not those"), ({"model": "given"}, "given")]
)
def test_what_a_run_cannot_say_is_said(tmp_path, fields, said):
    policy = a_run(tmp_path / "a", train=[0], heldout=[1], **fields)
    (unknown,) = training_of_directory(policy).unknown
    assert said in unknown


def test_a_folder_without_a_sound_run_says_nothing(tmp_path):
    class Away:
        def versions(self):
            raise RegistryError("the registry does not answer")

    (tmp_path / "policy").mkdir()
    assert "lies in no run" in training_of_directory(tmp_path / "policy").unknown[0]
    (said,) = training_of_directory(tmp_path / "policy", Away()).unknown
    assert "registry" in said
    policy = a_run(tmp_path / "a", train=[0, 1], heldout=[2])
    train = tmp_path / "a" / "accepted" / "tasks" / "train.jsonl"
    train.write_text(train.read_text().splitlines(keepends=True)[0])
    training = training_of_directory(policy)
    assert not training.prints
    assert "train.jsonl" in training.unknown[0]
    (tmp_path / "a" / "profile.json").write_text('{"training": 1}')
    assert "training" in training_of_directory(policy).unknown[0]
