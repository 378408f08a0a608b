"""Which spellings of a name are one, in which scripts, and where words end."""
# ruff: noqa: RUF001 (letters of other scripts are what this is about)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.records.folding import NameIndex, fold, folded_name, words

ONE = (
    ("São Paulo", "sao paulo"), ("N'Djamena", "ndjamena"), ("Ελλάδα", "ΕΛΛΑΔΑ"), ("Łódź", "łodz"),
    ("İstanbul", "istanbul"), ("Москва\u0301", "москва"), ("Орёл", "Орел"), ("ﾊﾞｽ", "バス"),
    ("e\u0301cole", "École"), ("ﬁn", "fin"), ("Đà Nẵng", "đa nang"),
)  # fmt: skip
SEVERAL = (
    ("किताब", "क़ुतुब", "कातिब", "कताब"),  # Hindi
    ("バス", "パス", "ハス"), ("か", "が"), ("はば", "ばは"),  # Japanese
    ("মা", "মি", "মু"), ("ਮਾ", "ਮਿ"), ("மா", "மி", "ம"), ("మా", "మి"), ("ಮಾ", "ಮಿ"), ("മാ", "മി"),
    ("ကာ", "ကိ"), ("แม", "แม่", "แม้"), ("ກາ", "ກິ"), ("កា", "កិ"),  # Burmese, Thai, Lao, Khmer
    ("мои", "мой"), ("ўсё", "усе"), ("북", "붘"), ("北", "比"), ("سن", "شن"), ("שר", "שד"),
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ONE)
def test_spellings_of_one_name_are_one(one, other):
    assert folded_name(one) == folded_name(other) != ""


@pytest.mark.parametrize("names", SEVERAL)
def test_marks_that_are_letters_part_names(names):
    assert len({folded_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("names", SEVERAL)
def test_a_name_is_found_as_a_whole_word(names):
    index = NameIndex(names)
    for name in names:
        assert list(index.found_in(f"x {name}, y")) == [folded_name(name)]


def test_a_vowel_sign_ends_no_word():
    assert words("लाल किताब है।") == ["लाल", "किताब", "है"]
    assert words("a\u0301b \u0301 c") == ["ab", "c"]


@given(st.text(max_size=12))
def test_folding_twice_changes_nothing_more(text):
    assert fold(fold(text)) == fold(text)
    assert folded_name(folded_name(text)) == folded_name(text)
