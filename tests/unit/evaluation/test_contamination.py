"""What a policy was trained on is told from what it was not, by digests alone."""

import re

import pytest

from espalier.config import ContaminationConfig, Profile
from espalier.environments import family_of, make_task
from espalier.evaluation.contamination import (
    Prints,
    SuitePrints,
    Training,
    contamination,
    require_uncontaminated,
)
from espalier.evaluation.lineage import Lineage, read_lineage
from espalier.records import ArtifactError, DataError

FAMILY = family_of(Profile(environment={"name": "search_qa"}))
CONFIG = ContaminationConfig()
LONG = "which of the two towns on the river has the older bridge of stone"


def task(key, question=None, split="heldout", **extra):
    return make_task(
        "search_qa", question or f"who keeps {key}?", gold=("x",), split=split, source="t",
        key=key, metadata={"extra": extra},
    )  # fmt: skip


def training(*tasks):
    return Training(data=("d",), prints=(Prints.of(FAMILY, tasks, 8),))


def found(seen, *asked, is_public=False, same_draw=()):
    prints = SuitePrints.of(FAMILY, asked, same_draw, 8, is_public=is_public)
    return contamination(seen, prints, CONFIG)


@pytest.mark.parametrize(
    ("seen", "asked", "kind"),
    [
        (task("a", "Who keeps  the light?"), task("b", "who keeps the light"), "question"),
        (task("a", query="k(C)"), task("b", query="k(C)"), "question"),
        (task("a", entities=["Merfal Light"]), task("b", entities=["merfal light"]), "entities"),
        (task("a", evidence=["d1", "d2"]), task("b", evidence=["d1"]), "documents"),
        (task("a", evidence=["d1"]), task("b", evidence=["d1", "d2"]), None),
        (task("a", entities=["Lyon"]), task("b", entities=["Paris"]), None),
        (task("a"), task("b"), None),
    ],
)
def test_shared_questions_entities_and_documents_are_found(seen, asked, kind):
    assert found(training(seen), asked).tasks == ({asked.task_id: kind} if kind else {})


def test_what_all_splits_of_a_draw_share_is_no_contamination():
    hub = task("h", split="train", entities=["France"], evidence=["france"])
    asked = task("b", entities=["Lyon", "France"], evidence=["france"])
    assert found(training(hub), asked, same_draw=[hub]).tasks == {}
    assert found(training(hub), asked).tasks == {asked.task_id: "entities"}


def test_runs_of_words_count_for_public_files_alone():
    seen, asked = training(task("a", f"{LONG} here")), task("b", f"{LONG} now")
    assert found(seen, asked).tasks == {}
    assert found(seen, asked, is_public=True).tasks == {asked.task_id: "runs"}
    other = task("c", "which of the two towns has a bridge, and when was it built by the river men")
    assert found(seen, other, is_public=True).tasks == {}


def test_what_is_not_known_is_said_in_words():
    asked = task("b")
    nothing = found(Training.not_known("what small was trained on"), asked)
    assert (nothing.state, "what small" in nothing.said(1)) == ("unknown", True)
    partly = found(training(task("a")) + Training.not_known("its base"), asked)
    assert partly.state == "partly"
    assert re.search("0 of 1 .*its base", partly.said(1))
    assert found(training(task("a")), asked).state == "checked"


def test_runs_of_another_length_leave_a_public_file_unknown():
    prints = SuitePrints.of(FAMILY, [task("b")], (), 5, is_public=True)
    config = ContaminationConfig(run_words=5)
    assert contamination(training(task("a")), prints, config).state == "partly"


def test_a_profile_may_refuse_what_is_contaminated_or_not_known():
    asked = task("b", "who keeps a?")
    seen = found(training(task("a")), asked)
    told = {"suite": "s", "model": "m", "num_tasks": 1}
    require_uncontaminated(seen, CONFIG, **told)
    with pytest.raises(DataError, match=r"1 of 1 .*\(1 by question\)"):
        require_uncontaminated(seen, ContaminationConfig(contaminated="refuse"), **told)
    unknown = found(Training.not_known("all"), asked)
    with pytest.raises(DataError, match=": all"):
        require_uncontaminated(unknown, ContaminationConfig(unknown="refuse"), **told)


def test_a_lineage_comes_back_whole_in_equal_bytes(tmp_path):
    seen = [task(key, entities=[key, "x"]) for key in "abc"]
    lineage = Lineage(training=training(*seen), base="b", base_name="m")
    path = tmp_path / "lineage.packed"
    path.write_bytes(lineage.packed())
    assert read_lineage(path) == lineage
    assert Lineage(training=training(*seen[::-1]), base="b", base_name="m").packed() == (
        lineage.packed()
    )
    assert b"keeps" not in path.read_bytes(), "digests alone are kept"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"lineage.packed"):
        read_lineage(path)
