"""Documents of a user's own that state in prose what the triples beside them say."""

import json
import random

import pytest

from espalier.config import AgentTextsConfig, ExpansionConfig, InvertedConfig, KnowledgeConfig
from espalier.records import DataError, NullTracker, ToolCalls, read_tasks
from espalier.records.folding import is_named_in
from espalier.records.knowledge import load_documents
from espalier.records.trajectory import read_trajectories
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import documents_path
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.reading_logs import BrowsingWriter

from .conftest import PROFILE

SYLLABLES = ("ba", "ko", "mi", "ru", "ta", "ve", "lo", "shi", "dan", "or", "pel", "gri", "nu", "sa")
WORDINGS = {
    "born_in": ("{s} was born in {o}.", "She never left {o}, where she was born."),
    "employer": ("{s} works for {o}.", "She earns her living at {o}."),
    "mentor": ("The mentor of {s} is {o}.", "She learned her craft from {o}."),
    "wrote": ("{s} wrote the book {o}.", "She is the author of {o}."),
}
ASIDES = ("She likes long walks.", "Few letters of {s} survive.", "She collects old maps.")


def _names(rng, count, num_words):
    found = set()
    while len(found) < count:
        chosen = ("".join(rng.sample(SYLLABLES, 3)).capitalize() for _ in range(num_words))
        found.add(" ".join(chosen))
    return rng.sample(sorted(found), count)


def _synthesized(tmp_path, wordings, title="{s}", *, triple_lines=False, **changes):
    """Questions of a hundred biographies, with 399 triples that a sentence says each."""
    rng = random.Random(0)
    people, books = _names(rng, 200, 2)[:100], _names(rng, 100, 3)
    towns, firms = _names(rng, 20, 1), [f"{name} Works" for name in _names(rng, 15, 1)]
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = []
    for number, person in enumerate(people):
        facts = {"born_in": rng.choice(towns), "employer": rng.choice(firms)}
        facts["wrote"] = books[number]
        if number:
            facts["mentor"] = rng.choice(people[:number])
        sentences = [rng.choice(ASIDES).format(s=person)]
        for relation, found in facts.items():
            rows.append({"subject": person, "relation": relation, "object": found})
            sentences.append(rng.choice(wordings[relation]).format(s=person, o=found))
        rng.shuffle(sentences)
        (folder / f"{number}.md").write_text(
            f"# {title.format(s=person)}\n\n{' '.join(sentences)}\n"
        )
    triples = tmp_path / "triples.jsonl"
    triples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    knowledge = KnowledgeConfig(
        source="folder", path=folder, triples=triples, triple_lines=triple_lines
    )
    profile = PROFILE.model_copy(update={"knowledge": knowledge, **changes})
    ingest.run(profile, {}, tmp_path / "knowledge", NullTracker())
    inputs = {"knowledge": tmp_path / "knowledge"}
    stage.run(profile, inputs, tmp_path / "synthetic", NullTracker())
    return tmp_path / "synthetic"


def test_prose_that_states_the_triples_yields_questions_for_every_split(tmp_path):
    synthetic = _synthesized(tmp_path, WORDINGS)
    for split, least in (("train", 250), ("dev", 25), ("heldout", 70)):
        tasks = read_tasks(synthetic / "tasks" / f"{split}.jsonl")
        assert len(tasks) >= least
        asked = " ".join(task.metadata.pattern for task in tasks)
        assert all(relation in asked for relation in WORDINGS)
    funnel = json.loads((synthetic / "funnel.json").read_text())
    assert funnel["reached"]["trajectories"] == PROFILE.synthesis.trajectories


@pytest.mark.parametrize(
    ("triple_lines", "reason"),
    [(True, "answer_twice_in_last_document"), (False, "stated_in_no_sentence")],
)
def test_a_source_without_fair_questions_names_the_reason(tmp_path, triple_lines, reason):
    mentions = dict.fromkeys(WORDINGS, ("{o} comes to mind here.",))
    with pytest.raises(DataError, match=f" {reason}"):
        _synthesized(tmp_path, mentions, triple_lines=triple_lines)


@pytest.mark.parametrize("stated", [("born_in",), ("born_in", "wrote"), tuple(WORDINGS)])
def test_what_no_sentence_names_is_counted_and_not_asked(tmp_path, stated):
    silent = dict.fromkeys(WORDINGS, ("She likes long walks.",))
    synthetic = _synthesized(tmp_path, silent | {name: WORDINGS[name] for name in stated})
    funnel = json.loads((synthetic / "funnel.json").read_text())["funnel"]
    rows = map(json.loads, (tmp_path / "triples.jsonl").read_text().splitlines())
    unnamed = sum(row["relation"] not in stated for row in rows)
    others = {"object_of_another_split", "object_not_askable", "subject_not_askable", "hubs_only"}
    counts = funnel["source.triples"]
    left = sum(number for reason, number in counts.items() if reason in others)
    assert unnamed - left <= counts.get("named_in_no_sentence", 0) <= unnamed
    for split in ("train", "dev", "heldout"):
        tasks = read_tasks(synthetic / "tasks" / f"{split}.jsonl")
        assert funnel[f"{split}.answers_of_triples"] == {"in_a_sentence": len(tasks)}
        asked = " ".join(task.metadata.pattern for task in tasks)
        assert {relation for relation in WORDINGS if relation in asked} == set(stated)


def test_documents_are_searched_as_the_user_wrote_them(tmp_path):
    _synthesized(tmp_path, WORDINGS)
    found = {
        document.title: " ".join(document.lines)
        for document in load_documents(documents_path(tmp_path / "knowledge", "full"))
    }
    assert len(found) == 100
    for path in (tmp_path / "texts").iterdir():
        title, _, text = path.read_text().partition("\n\n")
        assert found[title.removeprefix("# ")] == text.strip()


def test_a_teacher_of_prose_writes_only_shown_names(tmp_path):
    synthetic = _synthesized(tmp_path, WORDINGS)
    tasks = {task.task_id: task for task in read_tasks(synthetic / "tasks" / "train.jsonl")}
    several = reworded = 0
    for trajectory in read_trajectories(synthetic / "trajectories.parquet"):
        task = tasks[trajectory.task_id]
        names, seen = task.extra["entities"], task.question
        for message in trajectory.messages[1:]:
            queries = [call.arguments["query"] for call in message.tool_calls]
            written = " ".join((*queries, message.content if message.role == "assistant" else ""))
            for name in names:
                assert (
                    not is_named_in(name, written)
                    or name in task.question
                    or is_named_in(name, seen)
                )
            seen += f" {message.content}"
            if "learned" in " ".join(queries):  # the documents' word for a mentor
                reworded += 1
                assert trajectory.detour == "bad_query"
        several += len(names) > 2
    assert several > 3
    assert reworded > 3


def test_all_that_reads_lines_of_triples_reads_prose_too(tmp_path):
    wanted = {"inverted": InvertedConfig(share=0.2), "expansion": ExpansionConfig(share=0.1)}
    texts = AgentTextsConfig(memories=20, reasoning_tasks=20, decisions=10, negatives=12)
    synthetic = _synthesized(
        tmp_path,
        WORDINGS,
        synthesis=PROFILE.synthesis.model_copy(update=wanted),
        agent_texts=texts,
    )
    funnel = json.loads((synthetic / "funnel.json").read_text())["funnel"]
    assert funnel["planning"]["kept"] > 20
    assert funnel["reasoning"]["kept"] > 5
    assert funnel["decisions"]["kept_correct"] > 0
    assert funnel["negatives"]["not_needed"] == 4
    assert funnel["train.seeds"]["kept"] > 0
    for split in ("train", "dev", "heldout"):
        assert set(funnel[f"{split}.inverted"]) == {"document_of_prose"}
    assert len(read_tasks(synthetic / "tasks" / "heldout.jsonl")) >= 70


def test_the_model_that_solves_questions_reads_prose(tmp_path):
    synthesis = PROFILE.synthesis.model_copy(update={"solver": "teacher", "trajectories": 20})
    synthetic = _synthesized(tmp_path, WORDINGS, synthesis=synthesis)
    assert len(read_trajectories(synthetic / "trajectories.parquet")) == 20


def test_hindsight_finds_the_path_that_was_read_in_prose(tmp_path):
    synthetic = _synthesized(tmp_path, WORDINGS)
    knowledge = KnowledgeConfig(
        source="folder", path=tmp_path / "texts", triples=tmp_path / "triples.jsonl"
    )
    profile = PROFILE.model_copy(update={"knowledge": knowledge})
    hindsight = SearchQA(profile).hindsight(tmp_path / "knowledge", synthetic)
    tasks = {task.task_id: task for task in read_tasks(synthetic / "tasks" / "train.jsonl")}
    for trajectory in read_trajectories(synthetic / "trajectories.parquet"):
        task = tasks[trajectory.task_id]
        achieved = hindsight.achieved(task, trajectory)
        assert achieved.task.extra["query"] == task.extra["query"]


def test_logs_over_prose_state_what_their_searches_show(tmp_path):
    _synthesized(tmp_path, WORDINGS)
    knowledge = KnowledgeConfig(
        source="folder", path=tmp_path / "texts", triples=tmp_path / "triples.jsonl"
    )
    profile = PROFILE.model_copy(update={"knowledge": knowledge})
    reading = SearchQA(profile).reading_material(tmp_path / "knowledge", [])
    assert isinstance(reading, BrowsingWriter)
    rng = random.Random(0)
    lengths = set()
    for _ in range(200):
        log = reading.write(rng)
        shown = [piece for piece in log.pieces if isinstance(piece, str)]
        calls = [piece.calls[0] for piece in log.pieces if isinstance(piece, ToolCalls)]
        lengths.add(len(calls))
        for call, seen in zip(calls[1:], shown, strict=False):
            title, *_ = call.arguments["query"].rsplit(" ", 2)
            assert any(name in seen for name in (title, title.rsplit(" ", 1)[0]))
        assert is_named_in(log.pieces[-1].text, shown[-1])
    assert max(lengths) > 1


@pytest.mark.parametrize("stated", [(), ("born_in",), ("born_in", "wrote"), tuple(WORDINGS)])
def test_answers_that_no_sentence_names_are_counted_and_told(tmp_path, stated):
    silent = dict.fromkeys(WORDINGS, ("She likes long walks.",))
    wordings = silent | {name: WORDINGS[name] for name in stated}
    synthetic = _synthesized(tmp_path, wordings, triple_lines=True)
    funnel = json.loads((synthetic / "funnel.json").read_text())["funnel"]
    told = [line for line in funnel["remarks"] if "no sentence of its document names" in line]
    for split in ("train", "dev", "heldout"):
        tasks = read_tasks(synthetic / "tasks" / f"{split}.jsonl")
        last = [task.extra["query"].partition("(")[0].strip() for task in tasks]
        counts = funnel[f"{split}.answers_of_triples"]
        assert sum(counts.values()) == len(tasks)
        assert counts.get("in_a_sentence_too", 0) == sum(name in stated for name in last)
        alone = counts.get("in_an_added_line_alone", 0)
        assert any(f"{split}: {alone} of {len(tasks)} questions" in line for line in told) is (
            alone > 0
        )


def test_triples_without_prose_are_documents_of_their_own(tmp_path):
    synthetic = _synthesized(tmp_path, WORDINGS, title="Notes on {s}")
    funnel = json.loads((synthetic / "funnel.json").read_text())["funnel"]
    assert set(funnel["heldout.answers_of_triples"]) == {"in_a_document_of_triples"}
    assert not any("no sentence of its document names" in line for line in funnel["remarks"])
