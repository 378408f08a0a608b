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


def test_a_query_in_two_splits_is_counted_in_both():
    frame = columns(a_task("a", query="q"), a_task("b", "heldout", query="q"), a_task("c"))
    assert frame["other_splits_of_query"].tolist() == [1, 1, 0]
    # without a formal query there is none to share
    frame = columns(a_task("a", query=""), a_task("b", "heldout", query=""))
    assert frame["earlier_same_query"].tolist() == [0, 0]
    assert frame["other_splits_of_query"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("train", "heldout", "conflicts"),
    [
        (("Lyon",), ("Turin",), [0, 0]),
        (("Lyon", "Turin"), ("Bonn",), [1, 0]),
        (("Unknown",), ("UNKNOWN",), [1, 1]),
        (("Euro",), ("Euro",), [0, 0]),
    ],
)
def test_a_chain_with_an_entity_of_another_split_conflicts(train, heldout, conflicts):
    tasks = a_task("a", entities=train), a_task("b", "heldout", entities=heldout)
    frame = columns(*tasks, entities=splits_of(Lyon="train", Turin="heldout", Euro="hub"))
    assert frame["entity_split_conflicts"].tolist() == conflicts


def test_blank_gold_answers_and_files_of_other_splits_are_seen():
    frame = columns(a_task("a", gold=("Lyon", " ")), a_task("b"))
    assert frame["blank_gold_answers"].tolist() == [1, 0]
    frame = task_columns([SplitTask("train", a_task("a", "heldout"))], NO_ENTITIES, FAMILY)
    assert frame["is_in_own_file"].tolist() == [False]


def test_entity_splits_are_read_from_the_knowledge_artifact(tmp_path):
    entities = (an_entity("Lyon", "train"), an_entity("Euro", "hub", "currency"))
    splits = EntitySplits.load(knowledge_artifact(tmp_path / "knowledge", *entities))
    assert splits.splits == {"lyon": frozenset({"train"}), "euro": frozenset({"hub"})}
    assert splits.hubs == {"euro"}
    assert splits.hub_kinds == {"currency": 1}
    with pytest.raises(ArtifactError, match=r"entities\.parquet"):
        EntitySplits.load(tmp_path)
