import json

import pytest

from espalier.config import KnowledgeConfig, Profile, SynthesisConfig
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker, read_tasks
from espalier.records.knowledge import KnowledgeGraph, load_documents
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import documents_path
from espalier_search.synthesis.task_making import INDEX_OF_SPLIT
from espalier_search.synthesis.webshaper.candidate import DocumentTexts, World
from espalier_search.synthesis.webshaper.generator import Generator, kind_weights

PROFILE = Profile(
    seed=5,
    knowledge=KnowledgeConfig(max_cities=3000),
    synthesis=SynthesisConfig(
        train_tasks=400, dev_tasks=60, heldout_tasks=150, trajectories=60, detour_share=0.2
    ),
    curriculum={"candidates": 100},
    training={"dev_questions": 20},
    warm_start={"dev_questions": 20},
)
NUM_QUESTIONS = {"train": 400, "dev": 60, "heldout": 150}


@pytest.fixture(scope="session")
def knowledge_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("geonames") / "knowledge"
    ingest.run(PROFILE, {}, directory, NullTracker())
    return directory


@pytest.fixture(scope="session")
def graph(knowledge_dir):
    return KnowledgeGraph.load(knowledge_dir)


@pytest.fixture(scope="session")
def worlds(knowledge_dir, graph):
    evidence = {
        view: DocumentTexts(load_documents(documents_path(knowledge_dir, view)))
        for view in ("train", "dev", "full")
    }
    return {
        split: World(graph, evidence["full"], evidence[INDEX_OF_SPLIT[split]], 40)
        for split in NUM_QUESTIONS
    }


@pytest.fixture(scope="session")
def candidates(graph, worlds):
    """Fair questions of every split, by split."""
    generator = Generator(graph, kind_weights(PROFILE.synthesis), PROFILE.seed)
    return {
        split: generator.generate(split, count, worlds[split], Funnel())
        for split, count in NUM_QUESTIONS.items()
    }


@pytest.fixture(scope="session")
def synthetic_dir(tmp_path_factory, knowledge_dir):
    directory = tmp_path_factory.mktemp("synthetic") / "synthetic"
    stage.run(PROFILE, {"knowledge": knowledge_dir}, directory, NullTracker())
    return directory


@pytest.fixture(scope="session")
def tasks(synthetic_dir):
    """The questions of each split."""
    return {
        split: read_tasks(synthetic_dir / "tasks" / f"{split}.jsonl") for split in NUM_QUESTIONS
    }


@pytest.fixture(scope="session")
def own_profile(tmp_path_factory):
    """A profile over fifty documents of a user's own, each with one question."""
    folder = tmp_path_factory.mktemp("own") / "texts"
    folder.mkdir()
    rows = []
    for number in range(50):
        name, maker = f"Gadget{number:02d}", f"Maker{number:02d}"
        text = f"# {name}\n\n{name} is a machine. It was built by {maker} in {1900 + number}.\n"
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        rows.append(json.dumps({"question": f"Who built {name}?", "answer": maker}))
    questions = folder.parent / "questions.jsonl"
    questions.write_text("\n".join(rows) + "\n", encoding="utf-8")
    knowledge = KnowledgeConfig(source="folder", path=folder, questions=questions)
    return PROFILE.model_copy(update={"knowledge": knowledge})
