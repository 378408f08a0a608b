import random

import pytest

from espalier.records import FinalAnswer, KnowledgeError, ToolCalls
from espalier.records.knowledge import Document
from espalier_search.search_qa.reading_logs import ClozeWriter


def show_all(document, query):
    return " | ".join((document.title, *document.lines))


DOCUMENTS = [
    Document("d1", "Bakomi", ("The mayor of Bakomi is Ruta.", "Short line."), "train"),
    Document("d2", "Velo", ("Its oldest trade is that of the weaver.",), "train"),
]


def test_a_cloze_log_answers_what_its_search_shows():
    writer = ClozeWriter(DOCUMENTS, show_all, substitution_share=1.0)
    for seed in range(50):
        log = writer.write(random.Random(seed))
        search, shown, last = log.pieces
        assert isinstance(search, ToolCalls)
        assert isinstance(last, FinalAnswer)
        assert last.text in shown
        assert log == writer.write(random.Random(seed))


def test_documents_without_sentences_are_refused():
    with pytest.raises(KnowledgeError, match="nothing"):
        ClozeWriter([Document("d", "T", ("a b",), "train")], show_all, substitution_share=0.5)
