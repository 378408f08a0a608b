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


def test_three_kinds_in_turn_call_no_missing_tool(knowledge_dir, synthetic_dir):
    texts, counts = negatives(knowledge_dir, synthetic_dir)
    assert [text.style for text in texts] == [*KINDS] * 20
    assert counts == dict.fromkeys(KINDS, 20)
    for text in texts:
        asked = text.prompt[0].content
        *searches, answer = actions(text)
        assert isinstance(answer, FinalAnswer)
        assert all(isinstance(action, ToolCalls) for action in searches)
        assert bool(searches) == (text.style == NOT_EXISTING)
        if text.style == NOT_OFFERED:
            assert asked.startswith("No tool is offered. ")
            assert answer.text == DECLINED
        elif text.style == NOT_NEEDED:
            assert f" is {answer.text}. What is " in asked
        else:
            assert any(f"Use the {tool} tool. " in asked for tool in UNKNOWN_TOOLS)


def test_a_kind_that_runs_dry_leaves_room_to_the_others(knowledge_dir, synthetic_dir):
    texts, counts = negatives(knowledge_dir, synthetic_dir, 400)
    assert len(texts) == 400
    assert counts[NOT_EXISTING] == 60
    assert counts[f"{NOT_EXISTING}_exhausted"] == 1
