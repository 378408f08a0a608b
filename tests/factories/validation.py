"""Hand-built tasks and trajectories, and artifacts made of them."""

from pathlib import Path

from espalier.config import Profile
from espalier.records import (
    FinalAnswer,
    Message,
    Provenance,
    ToolCall,
    publishing,
    write_tasks,
)
from espalier.records.knowledge import Entity, KnowledgeGraph
from espalier.records.trajectory import (
    ToolResult,
    write_trajectories,
)
from espalier_search.search_qa import SearchQA
from espalier_search.synthesis.search_wording import search_call
from tests.factories.records import make_task, make_trajectory

FAMILY = SearchQA(Profile())


def a_task(task_id, split="train", *, question=None, gold=("Lyon",), query=None, entities=()):
    return make_task(
        task_id,
        question,
        gold=gold,
        split=split,
        query=f"query({task_id})" if query is None else query,
        entities=list(entities),
    )


def search(query):
    return search_call("look", query).message()


def answer(text):
    return FinalAnswer(text, "found").message()


def saw(text):
    return Message(role="tool", content=text)


def a_trajectory(task_id, *episode, calls=None, reward=1.0, final="Lyon", **fields):
    """A solved one-search episode, unless `episode` says otherwise."""
    episode = episode or (search("rhone"), saw("Rhone | city: Lyon"), answer("Lyon"))
    if calls is None:
        calls = (("rhone", "Rhone | city: Lyon"),)
    return make_trajectory(
        task_id,
        messages=(Message(role="user", content=f"what is asked by {task_id}"), *episode),
        tool_results=tuple(
            ToolResult(
                call=ToolCall(name="search", arguments={"query": query}),
                content=result,
                succeeded=True,
            )
            for query, result in calls
        ),
        outcome=reward,
        answer=final,
        **fields,
    )


def an_entity(name, split, kind="city"):
    return Entity(
        entity_id=f"{kind}:{name}",
        name=name,
        kind=kind,
        hub=split == "hub",
        split=split,
        askable=True,
        document_id="",
    )


def knowledge_artifact(directory: Path, *entities: Entity) -> Path:
    with publishing(directory, _provenance("ingest")) as draft:
        KnowledgeGraph(entities, [], []).save(draft.path)
    return directory


def synthetic_artifact(directory: Path, tasks, trajectories) -> Path:
    """An artifact of `tasks`, each in the file of its split."""
    with publishing(directory, _provenance("synthesize")) as draft:
        (draft.path / "tasks").mkdir()
        for split in ("train", "dev", "heldout"):
            own = [task for task in tasks if task.metadata.split == split]
            write_tasks(draft.path / "tasks" / f"{split}.jsonl", own)
        write_trajectories(draft.path / "trajectories.parquet", trajectories)
        (draft.path / "funnel.json").write_text("{}\n")
    return directory


def _provenance(producer):
    return Provenance(producer=producer, config_digest="0", seed=0)
