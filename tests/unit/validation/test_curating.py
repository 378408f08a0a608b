import json

import pytest

from espalier.config import CurationConfig, Profile
from espalier.records import AgentText, Message
from espalier.validation.columns import SplitTask
from espalier.validation.curating import ValidationRows, curate, write_curation
from espalier_search.search_qa import SearchQA
from tests.factories.validation import FAMILY, a_task, a_trajectory

QUESTIONS = {
    "t1": "What is the capital of the country where Lyon lies?",
    "t2": "what is the capital of the country where lyon lies",
    "t3": "Which time zone is used in the largest city of Italy?",
    "t4": "Who may write to ada@example.org about Turin?",
}


def family(**curation):
    return SearchQA(Profile(curation=CurationConfig(**curation)))


def a_text(number, kind="planning", task_id="", words=""):
    question = words or f"Name thing number {number} of the {number} things in row {number}."
    return AgentText(
        text_id=f"x{number}",
        kind=kind,
        style="retrieval",
        prompt=(Message(role="user", content=question),),
        pieces=(Message(role="assistant", content="<think> a </think> <answer> b </answer>"),),
        task_id=task_id,
        sources=("doc",),
    )


@pytest.fixture
def material():
    train = [SplitTask("train", a_task(name, question=q)) for name, q in QUESTIONS.items()]
    heldout = SplitTask("heldout", a_task("h1", "heldout", question=QUESTIONS["t1"]))
    texts = [a_text(1, task_id="t4"), *(a_text(n) for n in range(2, 8)), a_text(8, "decision")]
    return ValidationRows([*train, heldout], [a_trajectory("t1"), a_trajectory("t2")], texts)


def test_training_questions_are_screened_with_what_belongs_to_them(material):
    curated = curate(material, FAMILY)
    left = curated.material
    assert [task.task_id for _, task in left.tasks] == ["t1", "t3", "h1"]
    assert [trajectory.task_id for trajectory in left.trajectories] == ["t1"]
    assert "x1" not in {text.text_id for text in left.texts}
    rows = curated.report["training_questions"]
    assert (rows["before"], rows["after"]) == (4, 2)
    assert rows["dropped_rows"] == [
        {"row_id": "t2", "reason": "near_duplicate", "detail": "t1"},
        {"row_id": "t4", "reason": "secret", "detail": "email"},
    ]
    weighted = family(weights={"planning": 2, "decision": 1}, near_duplicate=1.0)
    assert curate(material, weighted).report["kinds_of_text"] == {"decision": 1, "planning": 2}


def test_a_benchmark_that_the_profile_names_is_kept_out(material, tmp_path):
    path = tmp_path / "exam.txt"
    path.write_text(f"{QUESTIONS['t3']}\n")
    curated = curate(material, family(benchmarks={"exam": path}))
    assert "t3" not in {task.task_id for _, task in curated.material.tasks}
    assert curated.report["training_questions"]["contaminated"] == 1
    assert curated.report["benchmarks"] == {"exam": 1}


def test_card_and_lineage_are_written_beside_the_data(material, tmp_path):
    (tmp_path / "attribution.txt").write_text("GeoNames, CC BY 4.0")
    curated = curate(material, FAMILY)
    out = tmp_path / "out"
    out.mkdir()
    write_curation(out, curated, tmp_path, FAMILY)
    rows = [json.loads(line) for line in (out / "lineage.jsonl").read_text().splitlines()]
    assert len(rows) == len(curated.material.tasks) + len(curated.material.texts)
    assert {"row": "x2", "documents": ["doc"]} in rows
    assert "GeoNames, CC BY 4.0" in (out / "CARD.md").read_text()
    assert json.loads((out / "curation.json").read_text()) == curated.report
