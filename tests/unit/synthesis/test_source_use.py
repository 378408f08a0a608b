"""Every row of a user's own source is asked about, or counted under a reason."""

import json

import pytest

from espalier.config import KnowledgeConfig
from espalier.records import DataError
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from tests.factories.tracking import Notes

from .conftest import PROFILE


def _run(tmp_path, *, questions=(), triples=(), documents):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, (title, text) in enumerate(documents):
        (texts / f"{number}.md").write_text(f"# {title}\n\n{text}\n")
    paths = {}
    for name, rows in (("questions", questions), ("triples", triples)):
        if rows:
            paths[name] = tmp_path / f"{name}.jsonl"
            paths[name].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    knowledge = KnowledgeConfig(source="folder", path=texts, **paths)
    profile = PROFILE.model_copy(update={"knowledge": knowledge})
    notes = Notes()
    ingest.run(profile, {}, tmp_path / "knowledge", notes)
    inputs = {"knowledge": tmp_path / "knowledge"}
    stage.run(profile, inputs, tmp_path / "synthetic", notes)
    return json.loads((tmp_path / "synthetic" / "funnel.json").read_text())["funnel"], notes.lines


def _name(number):
    return "".join("bdfgklmnprstvz"[int(digit)] + "aeo"[int(digit) % 3] for digit in f"{number:03}")


def test_every_question_pair_has_a_reason(tmp_path):
    towns = [_name(number).capitalize() for number in range(40)]
    mayors = [f"Mayor {_name(number + 500).capitalize()}" for number in range(40)]
    pairs = list(zip(towns, mayors, strict=True))
    rows = [{"question": f"Who governs {town}?", "answer": mayor} for town, mayor in pairs]
    rows += [
        rows[0],
        {**rows[1], "answer": "Nobody"},
        {"question": "Who is king?", "answer": "Xerxes"},
        {"question": f"Which year does {towns[2]} name?", "answer": mayors[3]},
    ]
    documents = [(town, f"The mayor who governs {town} is {mayor}.") for town, mayor in pairs]
    documents += [(f"{town} history", f"In some year {town} burnt.") for town in towns[2:3] * 6]
    funnel, notes = _run(tmp_path, questions=rows, documents=documents)
    counts = funnel["source.questions"]
    assert sum(counts.values()) == len(rows)
    assert counts == {
        "answer_found": 40,
        "answer_in_no_document": 1,
        "answer_only_in_documents_of_other_words": 1,
        "repeated": 1,
        "second_answer": 1,
    }
    assert any("second answer" in line for line in notes)


def _triples(count, num_towns):
    people = [f"{_name(n)} {_name(n + 300)}".title() for n in range(count)]
    towns = [_name(n + 700).capitalize() for n in range(num_towns)]
    rows = []
    for number, person in enumerate(people):
        types = {"subject": person, "subject_type": "person"}
        town = towns[number % num_towns]
        friend = people[(number * 7 + 3) % count]
        rows.append({**types, "relation": "born_in", "object": town, "object_type": "town"})
        rows.append({**types, "relation": "friend", "object": friend, "object_type": "person"})
    documents = [
        (row["subject"], f"The {row['relation'].replace('_', ' ')} of it is {row['object']}.")
        for row in rows[::2]
    ]
    return rows, documents


def test_every_triple_has_a_reason(tmp_path):
    rows, documents = _triples(100, 5)
    rows.append({**rows[0], "relation": "Cousin", "object": "X" * 30})
    funnel, _ = _run(tmp_path, triples=rows, documents=documents)
    counts = funnel["source.triples"]
    assert sum(counts.values()) == len(rows)
    assert counts["asked_about"] >= 100
    assert counts["object_not_askable"] == 1
    assert counts["object_of_another_split"] > 20


def test_too_few_triples_name_a_minimum_that_is_enough(tmp_path):
    rows, documents = _triples(4, 4)
    with pytest.raises(DataError) as caught:
        _run(tmp_path, triples=rows, documents=documents)
    assert "now 4" in str(caught.value)
    least = int(str(caught.value).split("about more entities (about ")[1].split()[0])
    assert 4 < least < 60
    again = tmp_path / "again"
    again.mkdir()
    rows, documents = _triples(least, 4)
    funnel, _ = _run(again, triples=rows, documents=documents)
    assert funnel["source.triples"]["asked_about"] > 0
