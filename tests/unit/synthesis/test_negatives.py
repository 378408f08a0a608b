from espalier.environments.funnel import Funnel
from espalier.records import FinalAnswer, ToolCalls, read_tasks
from espalier.records.knowledge import load_documents
from espalier.records.trajectory import read_trajectories
from espalier_search.knowledge.search import documents_path
from espalier_search.synthesis.agent_texts.negatives import (
    DECLINED,
    KINDS,
    NOT_EXISTING,
    NOT_NEEDED,
    NOT_OFFERED,
    UNKNOWN_TOOLS,
    Negatives,
)

from . import tags


def negatives(knowledge_dir, synthetic_dir, count=60):
    funnel = Funnel()
    tasks = read_tasks(synthetic_dir / "tasks" / "train.jsonl")
    documents = load_documents(documents_path(knowledge_dir, "train"))
    maker = Negatives({task.task_id: task for task in tasks}, documents, funnel, tags.write, 1)
    shown = read_trajectories(synthetic_dir / "trajectories.parquet")
    return maker.texts(shown, count), funnel.counts("negatives")


def actions(text):
    return [tags.parse(piece.content) for piece in text.pieces if piece.role == "assistant"]


def test_the_three_kinds_come_in_turn(knowledge_dir, synthetic_dir):
    texts, counts = negatives(knowledge_dir, synthetic_dir, 7)
    assert [text.style for text in texts] == [*KINDS, *KINDS, NOT_OFFERED]
    assert counts == {NOT_OFFERED: 3, NOT_NEEDED: 2, NOT_EXISTING: 2}


def test_without_the_tool_that_is_needed_the_agent_declines(knowledge_dir, synthetic_dir):
    texts, _ = negatives(knowledge_dir, synthetic_dir)
    for text in (text for text in texts if text.style == NOT_OFFERED):
        assert text.prompt[0].content.startswith("No tool is offered. ")
        (answer,) = actions(text)
        assert isinstance(answer, FinalAnswer)
        assert answer.text == DECLINED


def test_where_chat_is_enough_no_tool_is_called(knowledge_dir, synthetic_dir):
    texts, _ = negatives(knowledge_dir, synthetic_dir)
    for text in (text for text in texts if text.style == NOT_NEEDED):
        (answer,) = actions(text)
        assert isinstance(answer, FinalAnswer)
        assert f" is {answer.text}. What is " in text.prompt[0].content


def test_a_tool_that_does_not_exist_is_never_called(knowledge_dir, synthetic_dir):
    texts, _ = negatives(knowledge_dir, synthetic_dir)
    found = [text for text in texts if text.style == NOT_EXISTING]
    for text in found:
        assert any(f"Use the {tool} tool. " in text.prompt[0].content for tool in UNKNOWN_TOOLS)
        *searches, answer = actions(text)
        assert searches
        assert all(isinstance(action, ToolCalls) for action in searches)
        assert isinstance(answer, FinalAnswer)
    assert found


def test_a_kind_that_runs_dry_leaves_room_to_the_others(knowledge_dir, synthetic_dir):
    texts, counts = negatives(knowledge_dir, synthetic_dir, 400)
    assert len(texts) == 400
    assert counts[NOT_EXISTING] == 60
    assert counts[f"{NOT_EXISTING}_exhausted"] == 1
