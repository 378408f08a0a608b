import json
from collections import Counter

import pytest

from espalier.records import DataError, NullTracker, open_artifact, read_agent_texts, read_tasks
from espalier.records.knowledge import load_documents
from espalier.stages import ingest, validate
from espalier.stages import synthesize as stage
from espalier.validation import HiddenNames
from espalier_search.knowledge.search import documents_path
from tests.fakes.endpoint_double import Scripted, completion, running_double

from .conftest import PROFILE

pytestmark = pytest.mark.slow

ASKED = PROFILE.agent_texts.model_copy(
    update={"memories": 60, "reasoning_tasks": 60, "decisions": 30, "negatives": 30}
)
WITH_TEXTS = PROFILE.model_copy(update={"agent_texts": ASKED})


@pytest.fixture(scope="module")
def written(tmp_path_factory, knowledge_dir):
    directory = tmp_path_factory.mktemp("texts") / "synthetic"
    stage.run(WITH_TEXTS, {"knowledge": knowledge_dir}, directory, NullTracker())
    return directory


@pytest.fixture(scope="module")
def accepted(written, knowledge_dir):
    directory = written.parent / "accepted"
    inputs = {"knowledge": knowledge_dir, "synthetic": written}
    validate.run(WITH_TEXTS, inputs, directory, NullTracker())
    return directory


def test_texts_of_every_kind_are_written_and_counted(written):
    texts = read_agent_texts(written / "agent_texts.jsonl")
    kinds = Counter(text.kind for text in texts)
    assert kinds["planning"] > 60
    assert kinds["reasoning"] > 30
    assert kinds["decision"] == 30
    assert {text.style for text in texts if text.kind == "decision"} == {"correct", "incorrect"}
    assert len(read_agent_texts(written / "negatives.jsonl")) == 30
    funnel = json.loads((written / "funnel.json").read_text())["funnel"]
    assert funnel["planning"]["judged_unlikely"] > 0
    assert funnel["attempts"]["wrong"] >= 15


def test_the_same_seed_writes_the_same_texts(written, knowledge_dir, tmp_path):
    again = stage.run(
        WITH_TEXTS, {"knowledge": knowledge_dir}, tmp_path / "synthetic", NullTracker()
    )
    assert again.content == open_artifact(written).content


def test_agent_texts_change_nothing_else_of_the_artifact(written, synthetic_dir):
    files, plain_text = open_artifact(written).files, open_artifact(synthetic_dir).files
    changed = {name for name in files if files[name] != plain_text.get(name)}
    assert changed <= {"agent_texts.jsonl", "negatives.jsonl", "funnel.json", "run.json"}


def test_every_text_is_traced_back_to_its_documents_and_task(written, knowledge_dir):
    readable = {d.document_id for d in load_documents(documents_path(knowledge_dir, "train"))}
    tasks = {task.task_id for task in read_tasks(written / "tasks" / "train.jsonl")}
    for name in ("agent_texts.jsonl", "negatives.jsonl"):
        for text in read_agent_texts(written / name):
            assert text.sources
            assert set(text.sources) <= readable
            assert not text.task_id or text.task_id in tasks


def test_validation_accepts_texts_that_say_no_hidden_name(accepted, knowledge_dir):
    hidden = HiddenNames.load(knowledge_dir)
    kept = read_agent_texts(accepted / "agent_texts.jsonl")
    assert len(kept) > 100
    for text in kept:
        assert not any(hidden.count(m.content) for m in (*text.prompt, *text.pieces))
    report = json.loads((accepted / "validation.json").read_text())
    assert report["suites"]["texts"]["dropped"] <= 2


def test_a_teacher_without_usable_answers_stops_the_run(own_profile, tmp_path):
    with running_double() as double:
        double.usual = Scripted(completion("I would rather chat."))
        endpoint = {"url": double.url, "model": "small", "asks": 1}
        teacher = WITH_TEXTS.teacher.model_validate({"kind": "endpoint", "endpoint": endpoint})
        asked = {"knowledge": own_profile.knowledge, "teacher": teacher}
        profile = WITH_TEXTS.model_copy(update=asked)
        ingest.run(profile, {}, tmp_path / "knowledge", NullTracker())
        inputs = {"knowledge": tmp_path / "knowledge"}
        with pytest.raises(DataError, match="claims_broken_json"):
            stage.run(profile, inputs, tmp_path / "synthetic", NullTracker())
    assert not (tmp_path / "synthetic").exists()


def test_an_endpoint_writes_texts_as_the_embedded_teacher_does(tmp_path, knowledge_dir):
    answers = {
        "claims": lambda told: {"claims": [{"entity": told["title"], "text": told["lines"][0]}]},
        "questions": lambda told: {
            "questions": [{"style": "retrieval", "question": f"What about {told['entity']}?"}]
        },
        "analysis": lambda told: {"analysis": "country", "tool": "search",
                                  "query": told["question"]},
        "likely": lambda told: {"likely": True, "reason": "it names the entity"},
        "parts": lambda told: {"parts": ["all of it"], "answer": "Paris"},
        "reasoning": lambda told: {"reasoning": "it says so", "answer": told["first_answer"]},
        "candidates": lambda told: {"candidates": [{"thought": "country", "action": "search",
                                                    "text": "Paris country"}]},
    }  # fmt: skip

    def respond(body):
        schema = body["response_format"]["json_schema"]["schema"]["properties"]
        kind = next(name for name in answers if name in schema)
        told = json.loads(body["messages"][1]["content"])
        return completion(json.dumps(answers[kind](told)))

    with running_double() as double:
        double.respond = respond
        endpoint = {"url": double.url, "model": "small", "cache": tmp_path / "cache"}
        teacher = WITH_TEXTS.teacher.model_validate({"kind": "endpoint", "endpoint": endpoint})
        few = ASKED.model_copy(update={"memories": 5, "reasoning_tasks": 5, "decisions": 4})
        profile = WITH_TEXTS.model_copy(update={"agent_texts": few, "teacher": teacher})
        inputs = {"knowledge": knowledge_dir}
        first = stage.run(profile, inputs, tmp_path / "first", NullTracker())
        sent = len(double.seen)
        again = stage.run(profile, inputs, tmp_path / "again", NullTracker())
    assert first.rows["agent_texts"] >= 5
    assert (first.content, len(double.seen)) == (again.content, sent)
    usage = json.loads((tmp_path / "first" / "run.json").read_text())["teacher"]
    assert usage["judge_plan"]["answers"] == usage["judge_plan"]["requests"] == 5
    assert usage["draw_claims"]["prompt_tokens"] == 50
