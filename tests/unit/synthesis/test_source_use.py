"""Every row of a user's own source is asked about, or counted under a reason."""

import json

import pytest

from espalier.config import KnowledgeConfig, SearchConfig
from espalier.records import DataError, read_tasks
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import SearchTool
from tests.factories.tracking import Notes

from .conftest import PROFILE


def _run(tmp_path, *, questions=(), triples=(), documents, triple_lines=False):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number, (title, text) in enumerate(documents):
        (texts / f"{number}.md").write_text(f"# {title}\n\n{text}\n")
    paths = {}
    for name, rows in (("questions", questions), ("triples", triples)):
        if rows:
            paths[name] = tmp_path / f"{name}.jsonl"
            paths[name].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    knowledge = KnowledgeConfig(source="folder", path=texts, triple_lines=triple_lines, **paths)
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


CODES = [
    "5", "-5", "1.5", "-1.5", "15", "3/4", "4/3", "0.5", "1e6", "1e-6", "C", "C++", "C#", ".NET",
    "NET", "A+", "A-", "AC/DC", "5%", "$5", "<5", "v1.1", "v1.10", "UTC+5", "UTC-5", "AB", "H2O",
]  # fmt: skip


def test_every_code_and_number_is_asked_for(tmp_path):
    rows = [
        {
            "subject": _name(number).title(),
            "relation": "code",
            "object": code,
            "object_type": "code",
        }
        for number, code in enumerate(CODES)
    ]
    documents = [(row["subject"], f"{row['subject']} has the code {row['object']}") for row in rows]
    funnel, notes = _run(tmp_path, triples=rows, documents=documents)
    assert funnel["source.triples"] == {"asked_about": len(CODES)}
    gold = {
        task.verifier.gold[0]: task.question
        for split in ("train", "dev", "heldout")
        for task in read_tasks(tmp_path / "synthetic" / "tasks" / f"{split}.jsonl")
    }
    for row in rows:
        assert row["subject"] in gold[row["object"]], "each has the code of its own row"
    assert not [line for line in notes if "no question asks" in line]


def test_codes_are_asked_about_and_searched_for(tmp_path):
    languages = ["C", "C++", "C#", "F#", ".NET", "A+", "A-", "3/4", "-5", "5", "1e6", "AC/DC"]
    makers = [f"{_name(n)} {_name(n + 300)}".title() for n in range(len(languages))]
    rows = [
        {"subject": language, "relation": "maker", "object": maker, "object_type": "person"}
        for language, maker in zip(languages, makers, strict=True)
    ]
    documents = [(language, "It is used by some.") for language in languages]
    funnel, _ = _run(tmp_path, triples=rows, documents=documents, triple_lines=True)
    assert funnel["source.triples"] == {"asked_about": len(rows)}
    search = SearchTool.open(tmp_path / "knowledge", "full", SearchConfig())
    for language, maker in zip(languages, makers, strict=True):
        assert search.observation(f"{language} maker") == f"{language} | maker: {maker}"


def test_a_relation_left_out_is_named_with_its_share(tmp_path):
    rows, documents = _triples(40, 5)
    motto = "Ever so much more than twenty four letters"
    rows += [
        {**row, "relation": "motto", "object": f"{motto} {n}"} for n, row in enumerate(rows[::2])
    ]
    for row in rows[80:]:
        row["object_type"] = "motto"
    funnel, notes = _run(tmp_path, triples=rows, documents=documents)
    assert funnel["left_out.relations"]["motto"] == 40
    assert funnel["asked_about.relations"]["motto"] == 0
    assert funnel["asked_about.relations"]["born_in"] > 20
    columns = ("asked_about.relations", "not_drawn.relations", "left_out.relations")
    assert sum(sum(funnel[column].values()) for column in columns) == len(rows)
    (warning,) = [line for line in notes if "no question asks" in line and "motto" in line]
    assert "for 40 of 40 triples of motto (100%): 40 object_not_askable" in warning
    assert not [line for line in notes if "no question asks" in line and "born_in" in line]
