"""PDF, HTML, Office files and tables of a folder become documents; broken ones are named."""

import importlib.util
import io
import os
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest

from espalier.records import KnowledgeError
from espalier_search.knowledge import converting, converting_worker
from espalier_search.knowledge.converting_worker import paragraphs
from espalier_search.knowledge.folder import folder_documents, header_notes

with_extra = pytest.mark.skipif(
    not all(map(converting.is_convertible, converting.CONVERTED)),
    reason="the packages of espalier-agents-search[documents] are not installed",
)
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def read(folder):
    """Name of each document without its prefix -> title and lines."""
    return {
        document.document_id.removeprefix("document:"): (document.title, list(document.lines))
        for document in folder_documents(folder, [])
    }


def pdf(*lines):
    """A page with these lines of text, one below the other."""
    shown = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
    stream = f"BT /F1 12 Tf 72 720 Td {shown}ET".encode()
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )
    out, places = io.BytesIO(b""), []
    out.write(b"%PDF-1.4\n")
    for number, content in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def docx(body):
    """A Word file with this body, and an image that is linked from outside."""
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
        'relationships+xml"/><Default Extension="xml" ContentType="application/vnd.openxmlformats-'
        'officedocument.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
        f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" '
        'w:styleId="Title"><w:name w:val="Title"/></w:style></w:styles>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="r2" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, text in parts.items():
            packed.writestr(name, text)
    return out.getvalue()


def paragraph(text, style=""):
    styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{styled}<w:r><w:t>{text}</w:t></w:r></w:p>"


def write_office_files(folder):
    import openpyxl
    import pptx

    (folder / "word.docx").write_bytes(
        docx(paragraph("Lyon", "Title") + paragraph("It is a city.") + paragraph("x_y * 2 is z."))
    )
    book = openpyxl.Workbook()
    book.active.title = "People"
    for row in ([None], ["name", "born", "city"], ["Ada", 1815, "London"], ["Kurt", 1906.0, None]):
        book.active.append(row)
    book.save(folder / "book.xlsx")
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Nile", "It is a river."
    slides.save(folder / "talk.pptx")


@with_extra
def test_each_kind_of_file_becomes_text_with_a_title(tmp_path):
    write_office_files(tmp_path)
    (tmp_path / "paper.PDF").write_bytes(pdf("Ada Lovelace wrote a pro-", "gram in 1843."))
    assert read(tmp_path) == {
        "book.xlsx:People:3": ("Ada", ["name: Ada; born: 1815; city: London"]),
        "book.xlsx:People:4": ("Kurt", ["name: Kurt; born: 1906"]),
        "paper.PDF": ("paper", ["Ada Lovelace wrote a program in 1843."]),
        "talk.pptx": ("Nile", ["It is a river."]),
        "word.docx": ("Lyon", ["It is a city.", "x_y * 2 is z."]),
    }


PAGES = (
    ("<h1>Lyon</h1><p>It is old.</p>", "Lyon", ["It is old."]),
    ("<title>Lyon</title><p>It is old.</p>", "Lyon", ["It is old."]),
    ("<title>a | b</title><h2>Lyon</h2>It is old.", "Lyon", ["It is old."]),
    ("<p>It is old.</p>", "page", ["It is old."]),
    ("<style>p {x: y}</style><p>It is old.</p><script>x()</script>", "page", ["It is old."]),
    ("<!-- hidden --><p>It is <b>old</b>.</p>", "page", ["It is old."]),
    ("<p>It <a href='http://127.0.0.1:1/x'>is</a> old.</p>", "page", ["It is old."]),
    ("<p>It is old.<img src='http://127.0.0.1:1/x.png' alt='y'></p>", "page", ["It is old."]),
    ("<link rel=stylesheet href='http://127.0.0.1:1/'><p>It is old.", "page", ["It is old."]),
    ("<p>a_b_c is 5 * 3 &lt; 16 &amp; more.", "page", ["a_b_c is 5 * 3 < 16 & more."]),
    ("<ul><li>one</li><li>two</li></ul>", "page", ["one", "two"]),
    (
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>",
        "page",
        ["| a | b |", "| 1 | 2 |"],
    ),
    ("<p>It has 10<sup>22</sup> H<sub>2</sub>O.", "page", ["It has 10^22 H2O."]),
    ("<p>In 1969<sup>3</sup> it fell.", "page", ["In 1969 [3] it fell."]),
    ("<p>In 1969<sup><a href='#n3'>3</a></sup> it fell.", "page", ["In 1969 it fell."]),
    ("<p hidden>No.</p><p>It is old.</p>", "page", ["It is old."]),
    ("<p>Was <del>14</del> 15 men.</p>", "page", ["Was 15 men."]),
    ("<p>It was <s>$20</s> <strike>$9</strike> $15.</p>", "page", ["It was $15."]),
    ("<nav>Home Menu</nav><p>It is old.</p>", "page", ["It is old."]),
    ("<p style='color:red;display:none'>No.</p><p>It is old.</p>", "page", ["It is old."]),
    ("<p>It is <ruby>old<rp>(</rp><rt>No</rt><rp>)</rp></ruby>.", "page", ["It is old."]),
    ("<select><option>No<option>Nor</select><p>It is old.", "page", ["It is old."]),
    ("<template>No.</template><noscript>No.</noscript>It is old.", "page", ["It is old."]),
    ("<meta charset='latin-1'><p>It is \u00e9.</p>", "page", ["It is \u00e9."]),
)


@with_extra
def test_a_page_is_its_words_and_nothing_else(tmp_path):
    for number, (page, _, _) in enumerate(PAGES):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "page.html").write_bytes(
            page.encode("latin-1" if "latin-1" in page else "utf-8")
        )
    found = read(tmp_path)
    for number, (page, title, lines) in enumerate(PAGES):
        assert found[f"{number}/page.html"] == (title, lines), page


@with_extra
@pytest.mark.parametrize(
    ("before", "style", "shown", "behind", "line"),
    [
        ("It has 10", '<w:vertAlign w:val="superscript"/>', "22", "", "It has 10^22"),
        ("It was ", "<w:strike/>", "20 ", "15 euro.", "It was 15 euro."),
    ],
)
def test_a_word_file_is_read_as_it_looks(tmp_path, before, style, shown, behind, line):
    plain = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'.format
    styled = f"<w:r><w:rPr>{style}</w:rPr><w:t>{shown}</w:t></w:r>"
    (tmp_path / "a.docx").write_bytes(docx(f"<w:p>{plain(before)}{styled}{plain(behind)}</w:p>"))
    assert read(tmp_path) == {"a.docx": ("a", [line])}


@with_extra
def test_cells_are_read_as_they_are_shown(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "People"
    shown = {"share": (0.05, "0%"), "part": (0.125, "0.0%"), "zip": (501, "00000"),
             "took": (timedelta(hours=30), "[h]:mm:ss"), "size": (0.05, "General")}  # fmt: skip
    book.active.append(["name", *shown])
    book.active.append(["Ada", *(value for value, _ in shown.values())])
    for cell, (_, form) in zip(book.active[2][1:], shown.values(), strict=True):
        cell.number_format = form
    hidden = book.create_sheet("Notes")
    hidden.append(["name", "v"])
    hidden.append(["Kurt", 1])
    hidden.sheet_state = "hidden"
    book.save(tmp_path / "book.xlsx")
    line = "name: Ada; share: 5%; part: 12.5%; zip: 00501; took: 30:00:00; size: 0.05"
    assert read(tmp_path) == {"book.xlsx:People:2": ("Ada", [line])}


@with_extra
@pytest.mark.parametrize("formula", ["=1+1", '="Lyon"&"!"'])
def test_a_formula_that_no_program_has_calculated_is_named(tmp_path, formula):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "People"
    for row in (["name", "born"], ["Ada", formula]):
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    with pytest.raises(KnowledgeError, match=r"book.xlsx .*People!B2"):
        folder_documents(tmp_path, [])


@with_extra
def test_every_broken_file_is_named_with_its_reason(tmp_path):
    whole = pdf("Text.")
    contents = {
        "a.pdf": b"no PDF",
        "b.docx": b"no zip",
        "c.xlsx": docx(""),
        "d.pptx": b"",
        "whole.pdf": whole,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(KnowledgeError, match="cannot be read: ") as refused:
        folder_documents(tmp_path, [])
    message = str(refused.value)
    for name in ("a.pdf (", "b.docx (", "c.xlsx (", "d.pptx ("):
        assert name in message
    assert "whole.pdf" not in message


@with_extra
@pytest.mark.parametrize(
    ("name", "content"),
    [("scan.pdf", pdf()), ("empty.html", b"<script>x()</script>"), ("a.docx", docx(""))],
)
def test_a_file_without_text_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KnowledgeError, match=f"{name} .no text in it"):
        folder_documents(tmp_path, [])


HOSTILE = {
    "loop": ("while True: pass", "takes more than 1 s of processor time"),
    "hang": ("import time; time.sleep(3600)", "not read within 0.5 s"),
    "fill": ("x = bytearray(2**40)", "takes more than 2 GiB of memory"),
    "fetch": (
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
        "while a file is read",
    ),
    "start": ("import subprocess; subprocess.run(['true'])", "while a file is read"),
    "write": ("open(path.with_suffix('.new'), 'wb').write(b'x')", "while a file is read"),
    "die": ("import os; os.abort()", "ended by SIGABRT"),
    "quit": ("raise SystemExit('left')", "left"),
}


@pytest.mark.parametrize("deed", HOSTILE)
def test_what_a_parser_must_not_do_ends_it(tmp_path, monkeypatch, deed):
    source, message = HOSTILE[deed]
    code = Path(converting_worker.__file__).read_text()
    code = code.replace("PROCESSOR_S = 300", "PROCESSOR_S = 1")
    code = code.replace('    match path.suffix.lower():\n        case ".xlsx":', f"    {source}\n"
                        '    match path.suffix.lower():\n        case ".xlsx":')  # fmt: skip
    (tmp_path / "worker.py").write_text(code)
    monkeypatch.setattr(converting_worker, "__file__", str(tmp_path / "worker.py"))
    monkeypatch.setattr(converting, "PROCESSOR_S", 1)
    if deed == "hang":
        monkeypatch.setattr(converting, "_REPLY_WITHIN_S", 0.5)
    with converting.Converter() as converter:
        for _ in range(2):  # the second is read by another process
            with pytest.raises(converting.UnreadableError, match=message):
                converter.convert(tmp_path / "file.pdf")
            assert not readers_left(tmp_path / "worker.py")


def readers_left(worker):
    """Processes that this one started with `worker` and that are left."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = (Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
    return [line for line in lines if os.fsencode(worker) in line]


def test_files_are_named_with_the_command_that_reads_them(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "markitdown" else found(name)
    )
    (tmp_path / "sub").mkdir()
    names = ("a.pdf", "b.DOCX", "c.htm", "d.html", "e.pptx", "sub/f.pdf", "g.txt")
    for name in names:
        (tmp_path / name).write_text("Text.")
    with pytest.raises(KnowledgeError) as refused:
        folder_documents(tmp_path, [])
    assert str(refused.value) == (
        f"{tmp_path}: the packages are not installed that read a.pdf, b.DOCX, c.htm, d.html, "
        "e.pptx and 1 more: pip install 'espalier-agents-search[documents]', or move the files "
        "out of the folder"
    )


TABLES = (
    ("name,born\nAda,1815\n", [("Ada", "name: Ada; born: 1815")]),
    ("\ufeffname;born\r\nAda;1,5\r\n", [("Ada", "name: Ada; born: 1,5")]),
    ("name\tborn\nAda\t1815\n", [("Ada", "name: Ada; born: 1815")]),
    ("born,Name\n1815,Ada\n", [("Ada", "born: 1815; Name: Ada")]),
    ("id,title,name\n7,Countess,Ada\n", [("Countess", "id: 7; title: Countess; name: Ada")]),
    ('city,note\nLyon,"a, ""b""\nc"\n', [("Lyon", 'city: Lyon; note: a, "b" c')]),
    ("\n\na,b\n\n1,2\n,3\n", [("1", "a: 1; b: 2"), ("table", "b: 3")]),
    ("a,b\n1\n1,2,3\n", [("1", "a: 1"), ("1", "a: 1; b: 2; 3")]),
    ("a,\n1,2\n", [("1", "a: 1; 2")]),
    ("Stadt\nK\u00f6ln\n", [("K\u00f6ln", "Stadt: K\u00f6ln")]),
)


@pytest.mark.parametrize(("text", "rows"), TABLES)
def test_a_row_is_a_document_with_column_names(tmp_path, text, rows):
    (tmp_path / "table.csv").write_bytes(text.encode())
    documents = folder_documents(tmp_path, [])
    assert [(document.title, *document.lines) for document in documents] == rows
    assert len({document.document_id for document in documents}) == len(rows)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no row of cells"),
        (b"a,b\n", "no row of cells"),
        (b'a\tb\n1\t"2\n3\t4\n5\t6\n', "the row of line 2: unexpected end .* mark"),
        (b'a\tb\n1\t2\n"3\n\t4\n5\t"6"\n', "the row of line 3: .* expected after"),
        (b"a\n" + b"x" * 200_000, "line 2: field larger than field limit"),
        (b"a\n\xe9", "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, content, reason):
    (tmp_path / "t.tsv").write_bytes(content)
    with pytest.raises(KnowledgeError, match=f"t.tsv.*{reason}"):
        folder_documents(tmp_path, [])


def test_the_log_names_the_row_that_is_the_header(tmp_path):
    (tmp_path / "people.csv").write_text('name,"first\nyear"\nAda,1815\n')
    for number in range(7):
        (tmp_path / f"towns{number}.csv").write_text("Rome,-753\nKiel,1233\n")
    headers = {}
    folder_documents(tmp_path, [], headers)
    certain, doubtful = header_notes(headers)
    assert certain == "first rows are headers, and no documents: people.csv (name, first year)"
    assert doubtful.startswith("warning: ")
    assert "towns4.csv (Rome, -753); and 2 more. If" in doubtful
    assert header_notes({}) == []


def test_printed_lines_are_joined_into_paragraphs():
    text = "One exam-\nple of\ntext.\n\nTwo 1-\n2.\n\u2022 a\n\u2022 b\n| 1 | 2 |\n\fThree."
    assert paragraphs(text).split("\n") == [
        "One example of text.", "", "Two 1- 2.", "\u2022 a", "\u2022 b", "| 1 | 2 |", "", "",
        "Three.",
    ]  # fmt: skip
