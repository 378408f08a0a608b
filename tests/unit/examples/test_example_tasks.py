"""The examples have tasks in every split, a teacher, and traces that can be learned."""

from pathlib import Path

import pytest

from espalier.config import load_profile
from espalier.environments import family_of
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker, Provenance, publishing
from espalier.records.trajectory import Trajectory
from espalier.training.own_traces import encode_trace, read_demonstrations, read_pairs
from tests.factories.tiny import tiny_dialect
from tests.unit.examples.test_example_profiles import EXAMPLES, ROOT, overrides

OWN = [EXAMPLES / "own_environment" / "profile.toml", EXAMPLES / "own_knowledge" / "profile.toml"]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.parent.name)
def test_every_split_has_tasks_that_the_teacher_solves(path, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(EXAMPLES / "own_environment")
    profile = load_profile(path, overrides(path))
    family, knowledge = family_of(profile), Path(tmp_path / "knowledge")
    with publishing(knowledge, Provenance(producer="ingest", config_digest="0", seed=0)) as draft:
        family.ingest(draft, NullTracker())
    questions = family.questions(knowledge, Funnel(), NullTracker())
    assert {split: len(found) for split, found in questions.items()} == {
        "train": profile.synthesis.train_tasks,
        "dev": profile.synthesis.dev_tasks,
        "heldout": profile.synthesis.heldout_tasks,
    }
    asked = [{question.task.question for question in found} for found in questions.values()]
    assert len(set.union(*asked)) == sum(map(len, asked))
    with family.teacher(knowledge, Funnel()) as demonstrate:
        shown = [demonstrate(question, "") for question in questions["train"][:20]]
    assert all(isinstance(one, Trajectory) and one.is_right for one in shown)


def test_no_order_of_the_own_family_is_in_two_splits(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "own_environment")
    family = family_of(load_profile(OWN[0], overrides(OWN[0])))
    orders = [
        {tuple(task.extra[key] for key in ("item", "count", "carrier")) for task in tasks}
        for tasks in (family.tasks(split, 300) for split in ("train", "dev", "heldout"))
    ]
    assert len(set.union(*orders)) == sum(map(len, orders))


def test_own_traces_are_episodes_of_the_embedded_policy(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_profile(EXAMPLES / "own_traces" / "profile.toml").warm_start
    shown = read_demonstrations(config.demonstrations)
    pairs = read_pairs(config.preferences.path)
    dialect = tiny_dialect()
    for trace in [*shown, *(one for pair in pairs for one in pair)]:
        sequence = encode_trace(trace, dialect)
        written = [
            token
            for token, taught in zip(sequence.token_ids, sequence.loss_mask, strict=True)
            if taught
        ]
        assert dialect.text(written).rstrip().endswith(("</answer>", "</search>"))
