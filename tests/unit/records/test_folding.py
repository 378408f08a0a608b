"""Which spellings of a name are one, in which scripts, and where words end."""
# ruff: noqa: RUF001 (letters of other scripts are what this is about)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.records.folding import (
    NameIndex,
    SpelledNames,
    fold,
    folded_name,
    is_named_in,
    is_number,
    name_words,
    phrases,
    search_words,
    words,
)

ONE = (
    ("São Paulo", "sao paulo"), ("N'Djamena", "ndjamena"), ("Ελλάδα", "ΕΛΛΑΔΑ"), ("Łódź", "łodz"),
    ("İstanbul", "istanbul"), ("Москва\u0301", "москва"), ("Орёл", "Орел"), ("ﾊﾞｽ", "バス"),
    ("e\u0301cole", "École"), ("ﬁn", "fin"), ("Đà Nẵng", "đa nang"),
    ("-5", "\u22125", "(-5)"), ("3/4", "¾", "3\u20444"), ("20°C", "20 °C", "20℃"), ("5%", "5 %"),
    ("C++", "c++", "c＋＋"), ("C#", "c#"), ("10^2", "10²"), ("$5", "$ 5"), ("AC/DC", "ac-dc"),
    ("Zeitung", "Zei\u00adtung", "Zei\u200btung\u2060", "\ufeffZeitung"),
    ("می\u200cخواهم", "میخواهم"), ("क्\u200dष", "क्ष"), ("葛\U000e0100", "葛"), ("♠\ufe0f", "♠"),
    ("5½", "5\u200b½"),
    ("St. John's", "st johns"), ("Yahoo!", "yahoo"), ("東京 タワー", "東京タワー"), ("**A**", "A"),
    ("1\u202f234\u202f567", "1,234,567", "1\u00a0234\u2009567"),
    ("Lego\u2122", "Lego\u00ae", "LEGO \u00a9", "lego"),
)  # fmt: skip
SEVERAL = (
    ("किताब", "क़ुतुब", "कातिब", "कताब"),  # Hindi
    ("バス", "パス", "ハス"), ("か", "が"), ("はば", "ばは"),  # Japanese
    ("মা", "মি", "মু"), ("ਮਾ", "ਮਿ"), ("மா", "மி", "ம"), ("మా", "మి"), ("ಮಾ", "ಮಿ"), ("മാ", "മി"),
    ("ကာ", "ကိ"), ("แม", "แม่", "แม้"), ("ກາ", "ກິ"), ("កា", "កិ"),  # Burmese, Thai, Lao, Khmer
    ("мои", "мой"), ("ўсё", "усе"), ("북", "붘"), ("北", "比"), ("سن", "شن"), ("שר", "שד"),
    ("5", "-5", "+5", "0.5", ".5", "55"), ("1.5", "1,5", "15", "1/5", "1:5", "-1.5", "1.50"),
    ("3/4", "34", "33/4"), ("C", "C++", "C#", "C♯", "C*", "C-"), ("NET", ".NET"),
    ("A", "A+", "A-", "A*", "AB-"), ("1e6", "1e-6", "1e+6", "16"), ("10²", "102", "10⁻²", "10-2"),
    ("UTC+5", "UTC-5", "UTC+15"), ("v1.1", "v1.10", "v11"), ("A♠", "A♥"), ("-१०", "१०"),
    ("١٫٥", "١٥"), ("H⁺", "H"),
)  # fmt: skip
LONGER = (  # several words, of which another name may be one
    ("5", "5%", "$5", "€5", "<5", "≥5", "5°", "5+"), ("3/4", "3¾"), ("NET", "ASP.NET"),
    ("C", "C 5"), ("5<6", "5>6", "5 6"),
    ("p<0.05", "p>0.05", "p 0.05", "p\u22640.05", "p<=0.05", "p>=0.05"),
)  # fmt: skip


@pytest.mark.parametrize("spellings", ONE)
def test_spellings_of_one_name_are_one(spellings):
    assert len({folded_name(spelling) for spelling in spellings}) == 1
    assert folded_name(spellings[0])


@pytest.mark.parametrize("names", SEVERAL + LONGER)
def test_marks_numbers_and_signs_part_names(names):
    assert len({folded_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("names", SEVERAL)
def test_a_name_is_found_as_a_whole_word(names):
    index = NameIndex(names)
    for name in names:
        assert list(index.found_in(f"x {name}, y")) == [folded_name(name)]


def test_a_vowel_sign_ends_no_word():
    assert words("लाल किताब है।") == ["लाल", "किताब", "है"]
    assert words("a\u0301b \u0301 c") == ["ab", "c"]


@pytest.mark.parametrize(
    ("name", "text", "is_there"),
    [
        ("5", "It is -5 in Oslo.", False), ("-5", "It is \u22125 in Oslo.", True),
        ("5", "5% of 15", True), ("5", "version 1.5", False), ("1.5", "from 1.5 to 2", True),
        ("C", "C++ and C#", False), ("C", "C, C++ and C#", True), ("C++", "(C++)", True),
        ("NET", "the .NET runtime", False), ("1990", "born 3.10.1990", True),
        ("1918", "1914–1918", True), ("A", "grade A+", False), ("A+", "grade A+.", True),
        ("1", "1,000,000", False), ("京都", "京都は古い都です。", True),
        ("パス", "スペースパスポート", False), ("パス", "赤いパスです", True),
        ("ไทย", "ประเทศไทย", True), ("서울", "서울은 수도이다", True),
        ("Zeitung", "Die Zei\u00adtung kam.", True), ("Zei", "Die Zei\u00adtung kam.", False),
        ("Zei", "Die Zei\u200btung kam.", False), ("Lyon", "\ufeffLyon\u200b is old.", True),
        ("0.05", "p<0.05", True), ("5", "<b>5</b>", True), ("ខែ", "ខែ\u200bមករា", True),
        ("कताब", "किताब", False), ("क", "कि", False), ("ก", "กี่", False), ("", "a", False),
    ],
)  # fmt: skip
def test_a_name_is_in_a_text_only_whole(name, text, is_there):
    assert is_named_in(name, text) is is_there
    assert bool(list(NameIndex([name]).found_in(text))) is is_there
    if name != "-5":  # which the text spells otherwise
        assert bool(list(SpelledNames([name]).found_in(text))) is (is_there and name in text)


def test_names_are_replaced_whole_and_the_longest_first():
    others = {
        "C": "X",
        "C++": "Y",
        "5": "7",
        "New York": "Bonn",
        "New York City": "Köln",
        "東京": "大阪",
    }
    text = "C, C++ and C# in New York Citys or New York City; -5 or 5 in 東京は"
    replaced = SpelledNames(others).replaced(text, lambda name: others[name])
    assert replaced == "X, Y and C# in Bonn Citys or Köln; -5 or 7 in 大阪は"


def test_text_without_blanks_is_found_by_letters_and_pairs():
    assert search_words("東京の人口") == [
        "東",
        "東京",
        "京",
        "京の",
        "の",
        "の人",
        "人",
        "人口",
        "口",
    ]
    assert search_words("バス 2本") == ["バ", "バス", "ス", "2", "本"]
    assert search_words("กี่คน") == ["กี่", "กี่ค", "ค", "คน", "น"]
    assert search_words("C++ in São Paulo") == ["c", "in", "sao", "paulo"]
    assert search_words("Zei\u00adtung \u200bkam") == ["zeitung", "kam"]
    assert phrases("東京の人口。2本 São") == ["東京の人口", "2本", "sao"]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("5", True), ("-5", True), ("1.5", True), ("1,5", True), ("1,400", True), ("3/4", True),
        ("1e6", True), ("1e-6", True), ("20 %", True), ("$5", True), ("<5", True), ("½", True),
        (">=5", True), ("१०", True), ("1 234 567", True), ("1\u202f234", True), ("-1 234,5", True),
        ("1990 100", False), ("12 34", False), ("0 800 123 45", False),
        ("C", False), ("5th", False), ("12:30", False), ("1.2.3", False),
        ("5 6", False), ("B12", False), ("A♠", False),
    ],
)  # fmt: skip
def test_a_number_is_told_from_a_code(name, is_one):
    assert is_number(folded_name(name)) is is_one


SIGNS = st.text(
    "aA bC5 10.-+,:/$€%#*^eE_'()<>~½²⁻東バはก็°♯♠é\u0301−–ー१\u00ad\u200b\u200d", max_size=9
)


@given(st.text("abcXYZ .,:;-/()&'\"!?", max_size=40))
def test_names_of_letters_alone_are_their_words(text):
    letters = "".join(part for part in text.split("-"))
    assert name_words(letters.replace(".", " ")) == words(letters.replace(".", " "))


@given(st.text(max_size=12) | SIGNS)
def test_folding_twice_changes_nothing_more(text):
    assert fold(fold(text)) == fold(text)
    assert folded_name(folded_name(text)) == folded_name(text)
