import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import CurationConfig
from espalier.curation import (
    Contamination,
    TextRow,
    benchmark_texts,
    dataset_card,
    diversity,
    mixed,
    near_duplicates,
    quality_fault,
    screened,
    secret_in,
)
from espalier.curation.screening import overlap, word_runs
from espalier.records import DataError

WORDS = [f"word{number}" for number in range(400)]
CONFIG = CurationConfig()
NOTHING = Contamination({}, 13)


def sentence(seed, length=30):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def edited(text, seed, changes):
    found = text.split()
    rng = random.Random(seed)
    for place in rng.sample(range(len(found)), changes):
        found[place] = rng.choice(WORDS)
    return " ".join(found)


def test_near_duplicates_are_those_that_comparing_every_pair_finds():
    originals = [sentence(seed) for seed in range(120)]
    texts = [*originals, *(edited(t, n, n % 4) for n, t in enumerate(originals))]
    random.Random(1).shuffle(texts)
    runs = [word_runs(text) for text in texts]
    expected: dict[int, int] = {}
    for later in range(len(texts)):
        kept = (e for e in range(later) if e not in expected)
        repeated = next((e for e in kept if overlap(runs[later], runs[e]) >= 0.8), None)
        if repeated is not None:
            expected[later] = repeated
    assert 20 < len(expected) < 120
    assert near_duplicates(texts, 0.8) == expected


def test_case_accents_and_punctuation_do_not_hide_a_repetition():
    assert near_duplicates(["Find the capital of Perú!", "find the capital of peru"], 1.0) == {1: 0}


def test_questions_that_differ_in_a_name_are_no_repetitions():
    texts = [f"What is the currency of the country of {name}?" for name in ("Lyon", "Turin")]
    assert near_duplicates(texts, 0.8) == {}


def test_the_order_decides_which_of_two_stays():
    texts = [sentence(1), sentence(2), sentence(1)]
    assert near_duplicates(texts, 0.8) == {2: 0}


BENCHMARKS = {
    "long": ["a man had seven apples and gave two of them to his sister on the way home today"],
    "short": ["who wrote the first novel", "Paris"],
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A man had seven apples, and gave two of them to his sister!", "long: 13 words in a row"),
        ("so man had seven apples and gave two of them to his brother", ""),
        ("Tell me: who wrote the first novel ever?", "short: 5 words in a row"),
        ("paris", "short: exact"),
        ("the capital is Paris", ""),
        ("", ""),
    ],
)
def test_a_row_that_repeats_a_benchmark_is_found(text, found):
    assert Contamination(BENCHMARKS, 13).found_in(text) == found


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_run_of_a_benchmark_is_found_wherever_it_stands(data):
    text = sentence(data.draw(st.integers(0, 50)), 40).split()
    start = data.draw(st.integers(0, 40 - 13))
    around = data.draw(st.lists(st.sampled_from(["so", "then", "but"]), max_size=5))
    row = " ".join([*around, *text[start : start + 13], *around])
    assert Contamination({"b": [" ".join(text)]}, 13).found_in(row) == "b: 13 words in a row"


def test_benchmarks_are_lines_of_text_or_strings_of_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    rows = [{"question": "q1", "answers": ["x", {"deep": "y"}], "n": 3}, {"question": "q2"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert list(benchmark_texts(tmp_path / "a.txt")) == ["one", "two"]
    assert list(benchmark_texts(tmp_path / "b.jsonl")) == ["q1", "x", "y", "q2"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("b.jsonl", b'{"a": 1}\n{"a"', "line 2"),
        ("b.jsonl", b"[" * 200_000, "line 1"),
        ("b.txt", b"\xff\xfe", r"b\.txt"),
        ("b.csv", b"a,b", r"\.txt"),
        ("none.txt", None, r"none\.txt"),
    ],
)
def test_a_file_that_is_no_benchmark_is_named(tmp_path, name, content, complaint):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        list(benchmark_texts(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("What is the capital of France?", ""),
        ("hi", "too_short"),
        ("word " * 2001, "too_long"),
        ("the same thing again " * 30, ""),
        ("again " * 60, "repetitive"),
        ("!!! ??? *** a b c --- ___ === ///", "no_language"),
        ("caf\ufffd au lait please", "damaged"),
        ("one\x07two three four", "damaged"),
        ("one\ntwo\tthree four", ""),
    ],
)
def test_a_text_that_is_unfit_has_its_reason(text, fault):
    assert quality_fault(text, CONFIG) == fault


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to ada.l@example.org please", "email"),
        ("call +44 20 7946 0958 now", "phone"),
        ("sk-" + "a1B2" * 8, "api_key"),
        ("AKIA" + "ABCDEFGHIJKLMNOP", "api_key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "private_key"),
        ("host 192.168.10.20 is up", "ip_address"),
        ("password = hunter2hunter", "password"),
        ("pay with 4111 1111 1111 1111 today", "card_number"),
        ("pay with 4111 1111 1111 1112 today", ""),
        ("population: 7,153,309", ""),
        ("calling code: +676", ""),
        ("area: 82,880 km2 | domain: .ae", ""),
        ("version 1.2.3 of 2024-05-06", ""),
        ("<think> country </think> <search> Lyon country </search>", ""),
        ("a-" * 50_000, ""),
        ("a-" * 50_000 + " ada@example.org", "email"),
        ("eyJaaaaaaaa-" * 8_000, ""),
        (".".join(("eyJ" + "a" * 1000, "eyJ" + "b" * 4000, "c" * 90)), "token"),
    ],
)
def test_personal_data_and_secrets_are_found_by_their_shape(text, kind):
    assert secret_in(text) == kind


def test_the_first_refusing_filter_gives_the_reason_without_the_secret():
    rows = [
        TextRow("fit", "What is the capital of France?"),
        TextRow("again", "what is the capital of france"),
        TextRow("mail", "What is the capital? ada@example.org"),
        TextRow("short", "eh"),
        TextRow("test", "Tell me: who wrote the first novel ever?"),
    ]
    dropped = screened(rows, CONFIG, Contamination(BENCHMARKS, 13))
    assert [tuple(row) for row in dropped] == [
        ("again", "near_duplicate", "fit"),
        ("mail", "secret", "email"),
        ("short", "quality", "too_short"),
        ("test", "contaminated", "short: 5 words in a row"),
    ]


def test_a_row_repeats_none_that_was_left_out_itself():
    rows = [
        TextRow("a", f"ada@example.org {sentence(1)}"),
        TextRow("b", f"ada at home {sentence(1)}"),
    ]
    assert [row.row_id for row in screened(rows, CONFIG, NOTHING)] == ["a"]


def test_a_mix_is_as_large_as_its_weights_allow():
    by_kind = {"planning": list(range(100)), "decision": list(range(30)), "negative": [1, 2, 3]}
    kept = mixed(by_kind, {"planning": 2.0, "decision": 1.0}, seed=4)
    assert {kind: len(rows) for kind, rows in kept.items()} == {
        "planning": 60, "decision": 30, "negative": 3,
    }  # fmt: skip
    assert all(rows == sorted(rows) for rows in kept.values())
    assert mixed(by_kind, {"planning": 2.0, "decision": 1.0}, seed=4) == kept


def test_a_weighted_kind_without_rows_leaves_the_others_whole():
    assert mixed({"planning": [1, 2], "decision": []}, {"planning": 1, "decision": 1}, 0) == {
        "planning": [1, 2],
        "decision": [],
    }


def test_diversity_is_one_where_no_pair_of_words_repeats():
    assert diversity(["a b c", "d e"])["distinct_pair_share"] == 1.0
    assert diversity(["a b", "a b"])["distinct_pair_share"] == 0.5
    assert diversity([])["rows"] == 0


def test_a_card_escapes_what_would_break_its_table():
    card = dataset_card({"kinds_of_text": {"a|b\n# x": "<script>", "rows": [1, 2]}}, "GeoNames | x")
    assert "| a\\|b # x | &lt;script> |" in card
    assert "GeoNames \\| x" in card
    assert not any(line.startswith("# x") for line in card.splitlines())


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"min_words": 9, "max_words": 3}, "max_words"),
        ({"weights": {"poems": 1}}, "poems"),
        ({"weights": {"planning": 0}}, "weights"),
    ],
)
def test_settings_that_leave_nothing_are_refused(fields, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CurationConfig(**fields)


def test_no_filter_raises_whatever_a_text_holds():
    rng = random.Random(3)
    alphabet = [chr(c) for c in (0, 9, 10, 32, 45, 46, 64, 0x202E, 0xFFFD, 0x1F600, 0xD800)]
    alphabet += list("aA1+-")
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 60))) for _ in range(2000)]
    contamination = Contamination({"b": texts[:100]}, 4)
    for text in texts:
        assert isinstance(secret_in(text), str)
        assert isinstance(quality_fault(text, CONFIG), str)
        assert isinstance(contamination.found_in(text), str)
