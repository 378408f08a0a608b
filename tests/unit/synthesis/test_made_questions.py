"""Questions made from documents by the wording of a user's own pairs."""

from espalier.records.knowledge import Document
from espalier_search.synthesis.made_questions import made_questions
from espalier_search.synthesis.own_questions import OwnQuestion
from tests.factories.prose_folder import ProseFolder


def _document(title, *lines):
    return Document(f"document:{title}", title, lines, "train")


def _pair(question, answer, title):
    return OwnQuestion(question, (answer,), f"document:{title}", "train")


DOCUMENTS = [
    _document("Ada", "Ada was born in London.", "Ada liked London bread."),
    _document("Mary", "Mary was born in Jedburgh."),
    _document("Rosa", "Rosa was born in Bonn.", "She likes Rome."),
    _document("Emil", "Emil was born in Ulm.", "Later Emil lived in Kiel."),
    _document("Olga", "Olga was born in Riga.", "olga was born in Oslo."),
]
PAIRS = [
    _pair("Where was Mary born?", "Jedburgh", "Mary"),
    _pair("Where was Rosa born?", "Bonn", "Rosa"),
    _pair("In which town was Mary born?", "Jedburgh", "Mary"),
    _pair("In which town was Rosa born?", "Bonn", "Rosa"),
]


def _made(pairs, documents=DOCUMENTS):
    taken = frozenset(pair.question.lower().rstrip("?") for pair in pairs)
    return {(one.question, one.answers[0]) for one in made_questions(pairs, documents, taken)}


def test_wordings_are_asked_of_every_document_that_says_the_same():
    # Olga's document says two things
    assert _made(PAIRS) == {
        ("Where was Ada born?", "London"),
        ("In which town was Ada born?", "London"),
        ("Where was Emil born?", "Ulm"),
        ("In which town was Emil born?", "Ulm"),
    }
    known = _pair("Where was Emil born?", "Ulm", "Emil")
    made = _made([*PAIRS, known])
    assert ("In which town was Emil born?", "Ulm") in made
    assert ("Where was Emil born?", "Ulm") not in made


def test_one_pair_or_equal_titles_make_no_question():
    assert not _made(PAIRS[:1])
    assert not _made([PAIRS[0], _pair("Where was Ada born?", "London", "Ada")])
    twins = [_document("Emil", f"Emil was born in {town}.") for town in ("Ulm", "Bern")]
    assert not _made(PAIRS, [*DOCUMENTS[1:3], *twins])


def test_every_made_answer_is_what_the_document_says():
    folder = ProseFolder(3)
    facts = {(fact.subject, fact.relation): fact.object for fact in folder.facts}
    documents = [
        _document(title, *(f"{line}." for line in text.rstrip(".").split(". ")))
        for title, text in folder.documents.items()
    ]
    rows = list(zip(folder.questions(), folder.facts_asked, strict=True))
    pairs = [_pair(asked, answer, fact.subject) for (asked, answer), fact in rows][::2]
    taken = frozenset(asked.lower().rstrip("?") for (asked, _), _ in rows)
    made = made_questions(pairs, documents, taken)
    assert len(made) > 200
    known = {(wording.format(s=fact.subject), facts[fact.subject, fact.relation])
             for fact in folder.facts for wording in folder.wordings(fact)}  # fmt: skip
    assert {(one.question, one.answers[0]) for one in made} <= known
