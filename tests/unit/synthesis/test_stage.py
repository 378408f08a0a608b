import json

import pytest

from espalier.config import KnowledgeConfig
from espalier.records import DataError, NullTracker, open_artifact, read_tasks
from espalier.records.knowledge import KnowledgeGraph
from espalier.records.trajectory import read_trajectories
from espalier.stages import ingest
from espalier.stages import synthesize as stage

from .conftest import PROFILE

SPLITS = ("train", "dev", "heldout")


@pytest.fixture(scope="module")
def own_synthetic(tmp_path_factory, own_profile):
    scratch = tmp_path_factory.mktemp("own_run")
    ingest.run(own_profile, {}, scratch / "knowledge", NullTracker())
    inputs = {"knowledge": scratch / "knowledge"}
    stage.run(own_profile, inputs, scratch / "synthetic", NullTracker())
    return scratch / "synthetic"


@pytest.mark.slow
def test_the_same_seed_writes_the_same_content(synthetic_dir, knowledge_dir, tmp_path):
    inputs = {"knowledge": knowledge_dir}
    again = stage.run(PROFILE, inputs, tmp_path / "synthetic", NullTracker())
    assert again.content == open_artifact(synthetic_dir).content


def test_each_split_searches_its_own_index(tasks):
    indexes = {split: {task.arguments["index"] for task in tasks[split]} for split in SPLITS}
    assert indexes == {"train": {"train"}, "dev": {"dev"}, "heldout": {"full"}}


def test_task_ids_queries_and_questions_are_unique_over_all_splits(tasks):
    everything = [task for split in SPLITS for task in tasks[split]]
    for key in (lambda t: t.task_id, lambda t: t.extra["query"], lambda t: t.question):
        assert len({key(task) for task in everything}) == len(everything)


def test_no_held_out_entity_is_named_in_a_training_task(tasks, knowledge_dir):
    graph = KnowledgeGraph.load(knowledge_dir)
    secret = {e.name for e in graph.entities.values() if e.askable and e.split == "heldout"}
    for task in tasks["train"]:
        assert not secret.intersection(task.extra["entities"])
        assert not secret.intersection(task.verifier.gold)


def test_the_funnel_counts_reasons_and_names_what_is_exempt(synthetic_dir, own_synthetic, tasks):
    report = json.loads((synthetic_dir / "funnel.json").read_text())
    assert report["funnel"]["train.drawn"]["accepted"] == len(tasks["train"])
    assert report["funnel"]["train.drawn"]["answer_in_earlier_document"] > 0
    assert sum(report["splits"]["heldout"]["hops"].values()) == len(tasks["heldout"])
    assert {"currency", "continent", "time zone"} <= set(report["hub_kinds"])
    few = json.loads((own_synthetic / "funnel.json").read_text())["funnel"]["remarks"]
    assert any(line.startswith("train:") and "400" in line for line in few)


def test_own_questions_become_tasks_of_the_family_own(own_synthetic):
    rows = {split: read_tasks(own_synthetic / "tasks" / f"{split}.jsonl") for split in SPLITS}
    given = [task for found in rows.values() for task in found if task.metadata.source == "own"]
    assert len(given) == 50
    assert all(t.extra["kind"] == "own" for found in rows.values() for t in found)
    trajectories = read_trajectories(own_synthetic / "trajectories.parquet")
    gold = {task.task_id: task.verifier.gold for task in rows["train"]}
    assert 0.4 * len(gold) <= len(trajectories) <= 0.5 * len(gold) + 1
    assert all(trajectory.answer in gold[trajectory.task_id] for trajectory in trajectories)


def test_a_source_with_nothing_to_ask_says_what_to_do(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.md").write_text("# Ada\n\nAda wrote notes in 1843.\n")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "When did Ada write?", "answer": "1843"}) + "\n")
    knowledge = KnowledgeConfig(source="folder", path=folder, questions=questions)
    profile = PROFILE.model_copy(update={"knowledge": knowledge})
    ingest.run(profile, {}, tmp_path / "knowledge", NullTracker())
    inputs = {"knowledge": tmp_path / "knowledge"}
    with pytest.raises(DataError, match=r"knowledge\.questions"):
        stage.run(profile, inputs, tmp_path / "synthetic", NullTracker())
    assert not (tmp_path / "synthetic").exists()
