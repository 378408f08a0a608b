import pytest

from espalier.records import ArtifactError
from espalier.validation import EntitySplits, SplitTask, task_columns
from tests.factories.validation import FAMILY, a_task, an_entity, knowledge_artifact

NO_ENTITIES = EntitySplits({}, frozenset())


def columns(*tasks, entities=NO_ENTITIES):
    return task_columns([SplitTask(t.metadata.split, t) for t in tasks], entities, FAMILY)


def splits_of(**split_by_name):
    found = {name.lower(): frozenset({split}) for name, split in split_by_name.items()}
    hubs = frozenset(name for name, splits in found.items() if splits == {"hub"})
    return EntitySplits(found, hubs)


def test_copies_of_a_question_ignore_accents_and_case():
    frame = columns(
        a_task("a", question="Which city is in Rhône?"),
        a_task("b", question="which CITY is in rhone"),
        a_task("c", question="another one"),
    )
    assert frame["earlier_same_question"].tolist() == [0, 1, 0]


def test_tasks_without_a_formal_query_share_none():
    frame = columns(a_task("a", query=""), a_task("b", "heldout", query=""))
    assert frame["earlier_same_query"].tolist() == [0, 0]
    assert frame["other_splits_of_query"].tolist() == [0, 0]


def test_a_query_in_two_splits_is_counted_in_both():
    frame = columns(a_task("a", query="q"), a_task("b", "heldout", query="q"), a_task("c"))
    assert frame["other_splits_of_query"].tolist() == [1, 1, 0]


def test_a_chain_with_an_entity_of_another_split_conflicts():
    entities = splits_of(Lyon="train", Turin="heldout")
    frame = columns(
        a_task("a", entities=("Lyon",)), a_task("b", entities=("Lyon", "Turin")), entities=entities
    )
    assert frame["entity_split_conflicts"].tolist() == [0, 1]


def test_an_unknown_name_in_chains_of_two_splits_conflicts():
    frame = columns(a_task("a", entities=("Lyon",)), a_task("b", "heldout", entities=("LYON",)))
    assert frame["entity_split_conflicts"].tolist() == [1, 1]


def test_hubs_may_occur_in_every_split():
    frame = columns(
        a_task("a", entities=("Euro",)),
        a_task("b", "heldout", entities=("Euro",)),
        entities=splits_of(Euro="hub"),
    )
    assert frame["entity_split_conflicts"].tolist() == [0, 0]


def test_a_gold_answer_of_punctuation_alone_is_blank():
    frame = columns(a_task("a", gold=("Lyon", "?!")), a_task("b"))
    assert frame["blank_gold_answers"].tolist() == [1, 0]


def test_a_task_in_the_file_of_another_split_is_seen():
    frame = task_columns([SplitTask("train", a_task("a", "heldout"))], NO_ENTITIES, FAMILY)
    assert frame["is_in_own_file"].tolist() == [False]


def test_entity_splits_are_read_from_the_knowledge_artifact(tmp_path):
    entities = (an_entity("Lyon", "train"), an_entity("Euro", "hub", "currency"))
    splits = EntitySplits.load(knowledge_artifact(tmp_path / "knowledge", *entities))
    assert splits.splits == {"lyon": frozenset({"train"}), "euro": frozenset({"hub"})}
    assert splits.hubs == {"euro"}
    assert splits.hub_kinds == {"currency": 1}


def test_missing_entities_are_an_error_that_names_the_file(tmp_path):
    with pytest.raises(ArtifactError, match=r"entities\.parquet"):
        EntitySplits.load(tmp_path)
