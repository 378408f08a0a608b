"""What of a user's files is text, what is a title, and which files are read."""
# ruff: noqa: RUF001 (full stops of other scripts are what this is about)

import json
import os
import time

import pytest

from espalier.records import KnowledgeError
from espalier_search.knowledge.folder import files_left_out, folder_documents
from espalier_search.knowledge.sources import lines_of, read_json_lines, with_plain_raising
from espalier_search.knowledge.wikitext import plain_text

LINES = (
    ("1066. William conquers England.", ["1066. William conquers England."]),
    ("- 20 degrees was measured in 1941.", ["- 20 degrees was measured in 1941."]),
    ("* 14. März 1879 in Ulm", ["14. März 1879 in Ulm"]),
    ("1. FC Beispiel wurde 1948 gegründet.", ["1. FC Beispiel wurde 1948 gegründet."]),
    ("* first\n* second", ["first", "second"]),
    ("- 20 apples\n- 30 pears", ["20 apples", "30 pears"]),
    ("1. first\n2. second\n\n3. third", ["first", "second", "third"]),
    ("1) first\n2) second", ["first", "second"]),
    ("7. May was warm.\n\n12. May was cold.", ["7. May was warm.", "12. May was cold."]),
    ("- one", ["one"]),
    ("It lies 5 km. away from Ulm. Go.", ["It lies 5 km. away from Ulm.", "Go."]),
    (
        "Он родился в 1990 г. в Москве. Потом уехал.",
        [
            "Он родился в 1990 г. в Москве.",
            "Потом уехал.",
        ],
    ),
    ("La Dra. Ruiz vive aquí. Es alta.", ["La Dra. Ruiz vive aquí.", "Es alta."]),
    ("En EE. UU. hay 50 estados. Sí.", ["En EE. UU. hay 50 estados.", "Sí."]),
    ("Il Sig. Rossi è qui. Sì.", ["Il Sig. Rossi è qui.", "Sì."]),
    ("En 100 av. J.-C. il mourut. Oui.", ["En 100 av. J.-C. il mourut.", "Oui."]),
    ("Dhr. Jansen woont hier. Ja.", ["Dhr. Jansen woont hier.", "Ja."]),
    ("В г. Москва живут. Да.", ["В г. Москва живут.", "Да."]),
    ("Это ул. Ленина. Да.", ["Это ул. Ленина.", "Да."]),
    ("Он умер в 1990 г. Потом Рим.", ["Он умер в 1990 г.", "Потом Рим."]),
    ("Проф. Иванов пришёл. Да.", ["Проф. Иванов пришёл.", "Да."]),
    ("Er kam am 3. Mai 1990. Er ging.", ["Er kam am 3. Mai 1990.", "Er ging."]),
    ("Im 19. Jahrhundert und am 1. M\u00e4rz.", ["Im 19. Jahrhundert und am 1. M\u00e4rz."]),
    ("Narodil se 3. května 1990 v Brně.", ["Narodil se 3. května 1990 v Brně."]),
    ("There were 12. They left. No. It is.", ["There were 12.", "They left.", "No.", "It is."]),
    ("+ 5 is a number", ["5 is a number"]),
    ("# Heading\n> quoted", ["Heading", "quoted"]),
    ("> 1914 was a year.", ["1914 was a year."]),
    ("#hashtag stays", ["#hashtag stays"]),
    ("2001: A Space Odyssey", ["2001: A Space Odyssey"]),
)


@pytest.mark.parametrize(("text", "lines"), LINES)
def test_a_number_or_sign_that_is_text_stays(text, lines):
    assert list(lines_of(text)) == lines


SENTENCES = (
    ("東京は首都です。1400万人が住む。", ["東京は首都です。", "1400万人が住む。"]),
    ("本当！そう？はい。", ["本当！", "そう？", "はい。"]),
    ("他说：“你好。”然后走了。", ["他说：“你好。”", "然后走了。"]),
    ("（東京です。）次。", ["（東京です。）", "次。"]),
    ("लाल किताब है।नीली किताब है॥", ["लाल किताब है।", "नीली किताब है॥"]),
    ("ঢাকা রাজধানী। এটি বড়।", ["ঢাকা রাজধানী।", "এটি বড়।"]),
    ("នេះជាផ្ទះ។ នោះជាទឹក។", ["នេះជាផ្ទះ។", "នោះជាទឹក។"]),
    ("ဒါအိမ်။ ဟုတ်တယ်။", ["ဒါအိမ်။", "ဟုတ်တယ်။"]),
    ("هل هذا بيت؟ نعم.", ["هل هذا بيت؟", "نعم."]),
    ("It has 3.5 miles. It is red.", ["It has 3.5 miles.", "It is red."]),
    ("Bob uses .NET now. It is old.", ["Bob uses .NET now.", "It is old."]),
    ("He left . She stayed.", ["He left .", "She stayed."]),
    ("The end .", ["The end ."]),
)


@pytest.mark.parametrize(("text", "lines"), SENTENCES)
def test_sentences_end_at_the_full_stops_of_their_script(text, lines):
    assert list(lines_of(text)) == lines


TITLES = (
    ("```bash\n# install the tool\n```\n\n# Lyon\n\nText.", "Lyon"),
    ("~~~\n```\n# no\n~~~\n# Lyon\nText.", "Lyon"),
    ("---\ntitle: Lyon\n# a note\n---\nText.", "Lyon"),
    ('---\ntitle: "Lyon"\n---\n# Other\nText.', "Lyon"),
    ("---\nlayout: page\n---\n# Lyon\nText.", "Lyon"),
    ("<!--\n# hidden\n-->\n# Lyon\nText.", "Lyon"),
    ("Text.\n\n## Lyon ##\nMore.", "Lyon"),
    ("# Lyon\r\nText.\r\n", "Lyon"),
    ("# C#\nText.", "C#"),
    ("# #\n# Lyon \t# \nText.", "Lyon"),
    ("---\ntitle:\t'Lyon' \n---\nText.", "Lyon"),
    ("---\ntitle: Lyon's\n---\nText.", "Lyon's"),
    ("---\ntitle: ''\n---\nText.", "''"),
    ("Text.\n```\n# never closed\n", "file"),
    ("<!-- never closed\n# Lyon\nText.", "Lyon"),
    ("#Lyon\nText.", "file"),
    ("---\nText.\n", "file"),
)


@pytest.mark.parametrize(("text", "title"), TITLES)
def test_the_title_is_the_first_heading_of_the_text(tmp_path, text, title):
    (tmp_path / "file.md").write_bytes(text.encode())
    (document,) = folder_documents(tmp_path, [])
    assert document.title == title
    assert {"Text.", "More."} & set(document.lines)


def seconds(read, text):
    started = time.process_time()
    read(text)
    return time.process_time() - started


def grows_too_fast(read, begin, mark, end, length):
    """Whether up to 32 times the marks take over four times as long for each."""
    short = seconds(read, begin + mark * (length // len(mark)) + end)
    for times in (2, 4, 8, 16, 32):  # so that cubic time is noticed before it takes hours
        text = begin + mark * (times * length // len(mark)) + end
        if seconds(read, text) > 0.5 + 4 * times * short:
            return True
    return False


WIKITEXT = (  # what stands before repeated marks, the mark, and what stands behind
    ("=", " ", "x"), ("= a", "=", "x"), ("", "= \n", ""), ("", "'", "x"), ("", "{|\n", ""),
    ("[http://", "x", ""), ("", "[a://b ", ""), ("", "[a://b", " ]"), ("[a://b", " ", ""),
    ("", "<!--", ""), ("", "<ref>", ""), ("", "<ref", "/>"), ("", "<ref", "</ref>"),
    ("", "<ref name=a ", ""), ("", "<math>", ""), ("", "</math><math", ">"), ("", "<a ", ""),
    ("", "{{a}}{{", ""), ("", "{{", ""), ("", "[[a|", ""), ("", "[[File:", ""),
    ("[[File:", "[[b]]", ""), ("", "[[File:a[[b]]", ""), ("{{nowrap", "|a", "}}"),
    ("{{convert|1", "|2|km", "}}"), ("{{lang|", "[[", "}}"), ("{{frac", "|[[a|", "}}"),
)  # fmt: skip


@pytest.mark.parametrize(("begin", "mark", "end"), WIKITEXT)
def test_wikitext_is_read_in_time_linear_in_its_length(begin, mark, end):
    assert not grows_too_fast(plain_text, begin, mark, end, length=2500)


@pytest.mark.parametrize(
    "mark",
    ["<!--", "» ", "« ", "“", "‘", "'", '"', "(", "「", "1. ", "a. ", " .", "。", "! ", "> ", "# "],
)
def test_lines_are_divided_in_time_linear_in_their_length(mark):
    assert not grows_too_fast(lambda text: list(lines_of(text)), "", mark, "", length=5000)


@pytest.mark.parametrize(
    ("begin", "mark", "end"),
    [
        ("# a", " ", "b"), ("# a", "#", "b"), ("# a", " #", "b"), ("#", " ", ""), ("", "<!--", ""),
        ("---\ntitle: a", " ", "b\n---\n"), ("---\ntitle: 'a", "' ", "b\n---\n"), ("", "```\n", ""),
        ("---\ntitle:", " ", "\n---\n"), ("---\n", "title: a\n", ""), ("---\n", "---\n", "x"),
    ],
)  # fmt: skip
def test_markdown_is_read_in_time_linear_in_its_length(tmp_path, begin, mark, end):
    def read(text):
        (tmp_path / "file.md").write_text(text)
        folder_documents(tmp_path, [])

    assert not grows_too_fast(read, begin, mark, end, length=800)


def test_a_long_line_has_the_sentences_of_its_parts():
    said = "Ada met Mr. Babbage in 1833. “It works. Now.” she said. Did it? " * 200
    assert list(lines_of(said)) == [*lines_of(said[: len(said) // 200])] * 200


def test_entities_of_wikitext_are_characters():
    text = "1914&ndash;1918: &minus;5&nbsp;&deg;C, AT&amp;T, caf&eacute;, a &lt; b, &#8364;"
    assert plain_text(text) == "1914–1918: −5 °C, AT&T, café, a < b, €"
    assert plain_text(f"a&#{'9' * 5000};b &#x110000;") == "a\ufffdb \ufffd"


def test_every_file_is_read_or_counted(tmp_path):
    folder, outside = tmp_path / "docs", tmp_path / "outside"
    for path in (folder / "sub", folder / ".git", outside):
        path.mkdir(parents=True)
    read = ("a.MD", "b.Txt", "sub/c.txt")
    for name in (*read, "d.png", "e.PNG", "sub/f.doc", "Makefile", ".git/g.md", "~$a.txt"):
        (folder / name).write_text("Text.")
    (outside / "secret.txt").write_text("Secret.")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "inner.txt").symlink_to(folder / "b.Txt")
    found = {document.document_id for document in folder_documents(folder, [])}
    assert found == {f"document:{name}" for name in (*read, "inner.txt")}
    assert files_left_out(folder, []) == {
        "files_left_out_png": 2, "files_left_out_doc": 1, "files_left_out_none": 1,
        "links_out_of_the_folder": 1,
    }  # fmt: skip


def test_an_id_of_zero_is_an_id(tmp_path):
    rows = [{"id": number, "title": "T", "text": "x"} for number in (0, 1, "", None)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = [document.document_id for document in folder_documents(tmp_path, [])]
    assert found == ["document:0", "document:1", "document:a.jsonl:3", "document:a.jsonl:4"]


ROME = "Rome was founded in 753.\nIt is old.\n"
ROME_IN_RUSSIAN = "Рим основан в 753 году.\nОн стар.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ROME.encode("utf-16"), r"a\.txt: .*byte 0 .*iconv -f UTF-16 -t UTF-8 a\.txt"),
        (b"\xfe\xff" + ROME.encode("utf-16-be"), r"iconv -f UTF-16 -t UTF-8"),
        (ROME.encode("utf-32"), r"iconv -f UTF-32 -t UTF-8"),
        (ROME.encode("utf-16-le"), r"a\.txt: NUL .*byte 1\..*iconv -f UTF-16LE -t UTF-8 a\.txt"),
        (ROME.encode("utf-16-be"), r"NUL .*byte 0\..*iconv -f UTF-16BE -t"),
        (ROME.encode("utf-32-le"), r"NUL .*iconv -f UTF-32LE -t"),
        (ROME.encode("utf-32-be"), r"NUL .*iconv -f UTF-32BE -t"),
        (ROME_IN_RUSSIAN.encode("utf-16-le"), r"iconv -f UTF-16LE -t"),
        (ROME_IN_RUSSIAN.encode("utf-16-be"), r"iconv -f UTF-16BE -t"),
        ("café".encode("latin-1"), r"byte 3 .*iconv -f latin1 -t"),
        (ROME.encode() * 2 + b"a\0b", r"NUL .*byte 73\. Remove them"),
        (b"a\0b", r"NUL .*byte 1\. Remove them"),
    ],
)
def test_text_in_another_encoding_is_refused_with_advice(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(KnowledgeError, match=message):
        folder_documents(tmp_path, [])


def test_a_mark_before_utf8_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\rThree.")
    (document,) = folder_documents(tmp_path, [])
    assert document.lines == ("One.", "Two.", "Three.")


def test_a_file_name_in_another_encoding_is_refused(tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.p\xe9g")
    odd.write_text("no document")
    assert files_left_out(tmp_path, []) == {"files_left_out_p\ufffdg": 1}
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text(ROME)
    with pytest.raises(KnowledgeError, match=r"caf\\xe9\.md' is not UTF-8\. Rename"):
        folder_documents(tmp_path, [])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * 900 + "]" * 900, "nested too deeply"),
        ("9" * 5000, "5000 digits\\)"),
        ("1e999", "too large"),
        ("NaN", "NaN"),
        ('"a', "column 2"),
    ],
)
def test_json_that_cannot_be_kept_is_refused_by_its_line(tmp_path, value, reason):
    (tmp_path / "a.jsonl").write_text(f'{{"title": "t"}}\n{{"title": "t", "text": {value}}}\n')
    with pytest.raises(KnowledgeError, match=rf"a\.jsonl, line 2: .*{reason}.*remove the line"):
        list(read_json_lines(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("field", ["title", "text"])
def test_a_nul_that_json_escapes_is_refused_by_its_line(tmp_path, field):
    row = {"title": "t", "text": "One."} | {field: "a\0b"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(KnowledgeError, match=rf"line 1: '{field}' holds NUL"):
        folder_documents(tmp_path, [])


@pytest.mark.parametrize("value", ['"\\ud800"', '{"a": ["\\udfff x"]}'])
def test_half_a_surrogate_is_refused_by_its_line(tmp_path, value):
    (tmp_path / "a.jsonl").write_text(f'{{"title": "t"}}\n{{"title": "t", "text": {value}}}\n')
    with pytest.raises(KnowledgeError, match=r"a\.jsonl, line 2: .*surrogate"):
        list(read_json_lines(tmp_path / "a.jsonl"))


RAISED = (
    ("10<sup>22</sup> stars", "10^22 stars"), ("1.5e<sup>x</sup>", "1.5e^x"),
    ("m<sup>2</sup>", "m^2"), ("km<sup id='u'>2</sup>", "km^2"), ("(a+b)<sup>2</sup>", "(a+b)^2"),
    ("10<SUP>\u22126</SUP>", "10^\u22126"), ("2<sup>n</sup>", "2^n"),
    ("in 1969<sup>3</sup>.", "in 1969 [3]."), ("Rome<sup>12</sup> is", "Rome [12] is"),
    ("12,345<sup>1</sup>", "12,345 [1]"), ("Rome<sup>[4]</sup>", "Rome [4]"),
    ("word<sup>*</sup>", "word [*]"), ("1<sup>st</sup>", "1st"), ("2<sup>e</sup>", "2e"),
    ("Ca<sup>2+</sup>", "Ca2+"), ("101<sub>2</sub>", "101_2"), ("H<sub>2</sub>O", "H2O"),
    ("a < b <sup>", "a < b <sup>"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "read"), RAISED)
def test_what_is_raised_makes_no_other_number(text, read):
    assert with_plain_raising(text) == read
    if "<sup>" not in read:
        assert plain_text(text).split() == read.split()


@pytest.mark.parametrize(
    ("text", "title", "line"),
    [
        ("Lyon\n====\n\nIt is old.", "Lyon", "It is old."),
        ("Lyon\n----\nIt is old.", "Lyon", "It is old."),
        ('+++\ntitle = "Lyon"\ndraft = true\n+++\nIt is old.', "Lyon", "It is old."),
        ("+++\ntitle = 'Lyon'\n+++\n# Other\n", "Lyon", "Other"),
        ("It is old.\nIt is large.\n===\n", "a", "It is old."),
        ("| a | b |\n|---|---|\n| c | d |", "a", "| a | b |"),
        ("It is 10<sup>3</sup> years old.", "a", "It is 10^3 years old."),
    ],
)
def test_titles_of_other_kinds_of_markdown_are_read(tmp_path, text, title, line):
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    [document] = folder_documents(tmp_path, [])
    assert (document.title, document.lines[0]) == (title, line)


def test_a_linked_folder_is_counted(tmp_path):
    for name in ("texts", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text("Text.")
    (tmp_path / "texts" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "texts" / "b.md").symlink_to(tmp_path / "texts" / "a.md")
    assert files_left_out(tmp_path / "texts", []) == {"linked_folders": 1}


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("a;b,c;d\n1;2;3\n4;5;6\n", ["a: 1; b,c: 2; d: 3", "a: 4; b,c: 5; d: 6"]),
        ("text\nIt is old, large, and far.\nOdd, too.\n", ["text: It is old, large, and far.",
                                                         "text: Odd, too."]),
        ("a,b\n\"x; y\",2\n", ["a: x; y; b: 2"]),
        ("a;b\n1,5;2\n2,5;3\n", ["a: 1,5; b: 2", "a: 2,5; b: 3"]),
        ("a,b\n1\n", ["a: 1"]),
        ("a\tb;c\n1\t2\n", ["a: 1; b;c: 2"]),
    ],
)  # fmt: skip
def test_the_delimiter_is_that_of_all_rows(tmp_path, table, lines):
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    assert [" ".join(one.lines) for one in folder_documents(tmp_path, [])] == lines


@pytest.mark.parametrize(
    ("wikitext", "read"),
    [
        ("It is {{convert|10|km|mi|abbr=on}} long.", "It is 10 km long."),
        ("It is {{cvt|2.5|ha}}.", "It is 2.5 ha."),
        ("{{formatnum:1234567}} live there.", "1234567 live there."),
        ("{{val|1.5}} is it.", "1.5 is it."),
        ("{{Infobox|name=Ulm}}It is old.", "It is old."),
    ],
)
def test_numbers_of_templates_are_read(wikitext, read):
    assert " ".join(plain_text(wikitext).split()) == read
