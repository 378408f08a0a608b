"""The site: it builds, its links lead somewhere, and nothing in it is fetched from elsewhere."""

import html.parser
import re

import pytest

from docs import build, reference
from espalier.chain import CHAIN
from tests.unit.docs.fences import ROOT, edited


class Elements(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def elements(page):
    parser = Elements()
    parser.feed(page)
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build.build(out)
    return {path.name: path.read_text("utf-8") for path in out.glob("*.html")}


def test_every_page_is_built_and_in_the_navigation(site):
    assert len(site) == len(build.sources())
    for text in site.values():
        listed = {a["href"] for tag, a in elements(text) if tag == "a" and "href" in a}
        assert site.keys() <= listed


def test_pages_load_nothing_and_run_nothing(site):
    for name, text in site.items():
        loaded = {tag for tag, _ in elements(text)} & {"script", "link", "img", "iframe", "object"}
        assert loaded == set(), name
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
        assert "url(" not in style
        assert "@import" not in style
        assert "prefers-color-scheme: dark" in style


def test_links_between_pages_lead_to_pages_and_headings(site):
    ids = {name: {a.get("id") for _, a in elements(text)} for name, text in site.items()}
    for name, text in site.items():
        for tag, attributes in elements(text):
            link = attributes.get("href", "")
            if tag != "a" or link.startswith("https://"):
                continue
            file, _, anchor = link.partition("#")
            file = file or name
            assert file in ids, f"{name}: {link}"
            assert not anchor or anchor in ids[file], f"{name}: {link}"


@pytest.fixture
def copied(tmp_path):
    """The repository's pages, to spoil one of them."""
    for source in (build.FRONT, *build.sources()):
        path = tmp_path / source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / source).read_text("utf-8"), "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("[a](nowhere.md)", "nowhere.md is no page"),
        ("[a](index.md#nowhere)", "index.md has no heading 'nowhere'"),
        ("[a](http://plain.example/x)", "is no page"),
        ("[a](../Makefile)", "is no page"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(copied, spoiled, said):
    page = copied / "docs" / "report.md"
    page.write_text(page.read_text("utf-8") + f"\n{spoiled}\n", "utf-8")
    with pytest.raises(build.DocsError, match=re.escape(said)):
        build.render(copied)


def test_a_stale_generated_block_fails_until_renewed(copied):
    page = copied / "docs" / "concepts.md"
    page.write_text(page.read_text("utf-8").replace("Read the knowledge source", "x"), "utf-8")
    with pytest.raises(build.DocsError, match=r"concepts.md: generated block 'chain' is stale"):
        build.render(copied)
    build.write_generated(copied)
    assert page.read_text("utf-8") == (ROOT / "docs" / "concepts.md").read_text("utf-8")
    build.render(copied)


def test_a_page_outside_the_navigation_is_refused(copied):
    (copied / "docs" / "lost.md").write_text("# Lost\n", "utf-8")
    with pytest.raises(build.DocsError, match=r"not in the navigation.*docs/lost\.md"):
        build.render(copied)


def test_the_tool_prints_faults_and_exits_with_one(copied, monkeypatch, capsys):
    def refused(_out):
        raise build.DocsError("docs/a.md: a fault")

    monkeypatch.setattr(build, "build", refused)
    assert build.main([]) == 1
    assert capsys.readouterr().err == "error: docs/a.md: a fault\n"


def test_the_table_of_stages_follows_the_chain():
    rows = reference.chain_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [stage.name for stage in CHAIN]


def test_a_diff_without_numbers_finds_its_place():
    assert edited("a\nb\nc\n", " a\n+x\n-b\n+y\n") == "a\nx\ny\nc\n"
    with pytest.raises(ValueError, match="not in list"):
        edited("a\n", " b\n+x\n")
