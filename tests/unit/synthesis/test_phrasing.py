from espalier_search.synthesis.task_making import MAX_QUESTION_WORDS, question_text
from espalier_search.synthesis.webshaper.query import constants


def _texts(candidates, graph, seed=0):
    return {
        candidate: question_text(
            candidate.query, graph.entities[candidate.answer].kind, graph, seed
        )
        for found in candidates.values()
        for candidate in found
    }


def test_a_question_names_its_constants_and_never_its_answer(candidates, graph):
    for candidate, text in _texts(candidates, graph).items():
        assert all(candidate.name(entity) in text for entity in constants(candidate.query))
        assert candidate.name(candidate.answer) not in text.split()


def test_questions_stay_short(candidates, graph):
    texts = _texts(candidates, graph).values()
    assert max(len(text.split()) for text in texts) <= MAX_QUESTION_WORDS + 8
    assert sum(len(text.split()) > MAX_QUESTION_WORDS for text in texts) <= 0.01 * len(texts)


def test_the_seed_alone_decides_the_wording(candidates, graph):
    assert _texts(candidates, graph) == _texts(candidates, graph)
    assert _texts(candidates, graph) != _texts(candidates, graph, seed=1)
