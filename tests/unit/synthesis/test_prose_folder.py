"""Documents of a user's own that state in prose what the triples beside them say."""

import json
import random

import pytest

from espalier.config import KnowledgeConfig
from espalier.records import DataError, NullTracker, read_tasks
from espalier.stages import ingest
from espalier.stages import synthesize as stage

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


def _synthesized(tmp_path, wordings, title="{s}"):
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
    knowledge = KnowledgeConfig(source="folder", path=folder, triples=triples)
    profile = PROFILE.model_copy(update={"knowledge": knowledge})
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


def test_a_source_without_fair_questions_names_the_reason(tmp_path):
    mentions = dict.fromkeys(WORDINGS, ("{o} comes to mind here.",))
    with pytest.raises(DataError, match="answer_twice_in_last_document"):
        _synthesized(tmp_path, mentions)


@pytest.mark.parametrize("stated", [(), ("born_in",), ("born_in", "wrote"), tuple(WORDINGS)])
def test_answers_that_no_sentence_names_are_counted_and_told(tmp_path, stated):
    silent = dict.fromkeys(WORDINGS, ("She likes long walks.",))
    synthetic = _synthesized(tmp_path, silent | {name: WORDINGS[name] for name in stated})
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
