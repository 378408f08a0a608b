"""Build the documentation site: `python -m docs.build`, or `make docs`, into site/.

A small builder of our own, because the themes that MkDocs brings load scripts from a CDN and know
nothing of the pages that are generated here. The links inside the site and to files of the
repository are checked, and so is what stands generated in committed pages:

    <!-- generated: trajectory -->       stale text fails the build,
    <!-- end -->                         `python -m docs.build --write` renews it
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs import figures, reference, trajectory

ROOT = Path(__file__).parents[1]
NAV: dict[str, Sequence[str]] = {
    "Start": ("docs/index.md", "docs/concepts.md"),
    "Do": (
        "docs/own-knowledge.md", "docs/data-synthesis.md", "docs/own-model.md",
        "docs/own-traces.md", "docs/record-agent.md", "docs/interchange.md",
        "docs/cluster.md", "docs/retraining.md", "docs/evaluate.md",
        "docs/rollouts.md", "docs/learn-more.md", "docs/report.md", "docs/viewer.md",
        "docs/operations.md",
        "k8s/README.md", "examples/README.md",
    ),
    "Extend": (
        "docs/add-environment.md", "examples/own_environment/README.md",
        "examples/own_agent/README.md",
        "components/espalier_search/search_qa/README.md",
        "components/espalier_environments/python_math/README.md",
        "components/espalier_environments/customer_service/README.md",
        "components/espalier_environments/code/README.md",
        "components/espalier_environments/shop/README.md",
        "components/espalier_environments/sql/README.md",
        "components/espalier_environments/software_repair/README.md",
        "components/espalier/environments/mixture/README.md",
        "components/espalier_environments/web/README.md",
        "components/espalier_environments/function_calling/README.md",
        "components/espalier_interop/openenv/README.md",
        "components/espalier_interop/mcp/README.md",
        "components/espalier_interop/harbor/README.md",
        "components/espalier_environments/procedural/README.md",
        "docs/add-reward.md", "docs/judges.md", "docs/process-rewards.md", "docs/add-algorithm.md",
        "docs/add-sandbox.md", "components/espalier/sandbox/README.md", "CONTRIBUTING.md",
    ),
    "Look up": (
        "docs/results.md", "docs/field-troubles.md", "docs/profile.md", "docs/commands.md",
        "CHANGELOG.md",
    ),
}  # fmt: skip
"""Pages by chapter, in order; README files of the repository are pages too."""
FRONT = "README.md"
"""Has generated blocks and is no page of the site, whose front is docs/index.md."""
GENERATED: dict[str, Callable[[], str]] = {
    "profile_keys": reference.profile_keys,
    "commands": reference.commands,
    "presets": reference.presets,
    "chain": reference.chain_table,
    "step_figures": reference.step_figures,
    "detectors": reference.detectors,
    "trajectory": trajectory.printed,
    "laptop_short": figures.laptop_short,
    "laptop": figures.laptop,
    "laptop_settings": figures.laptop_settings,
    "tiny": figures.tiny,
    "families": figures.families,
    "families_laptop": figures.families_laptop,
    "own_folder": figures.own_folder,
    "adapters": figures.adapters,
    "speed_update": figures.speed_update,
    "speed_rollout": figures.speed_rollout,
    "curriculum": figures.curriculum,
    "presets_tried": figures.presets,
    "data_value": figures.data_value,
    "dialects": figures.dialects,
    "one_gpu": figures.one_gpu,
    "gpu": figures.gpu,
    "gpu_updates": figures.gpu_updates,
    "pace": figures.pace,
    "pace_measured": figures.pace_measured,
    "house": figures.house,
    "house_rooms": figures.house_rooms,
}
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


class DocsError(Exception):
    """What is wrong with the documentation, a fault on each line."""


@dataclass(slots=True)
class Page:
    """One page: where its text is, what it became, and what it points to."""

    source: str
    title: str = ""
    body: str = ""
    anchors: list[str] = field(default_factory=list)
    chapters: list[tuple[str, str]] = field(default_factory=list)
    """Anchor and text of each heading of the second level."""
    links: list[str] = field(default_factory=list)

    @property
    def file(self) -> str:
        """Its name in the site; README.md of k8s/ becomes k8s.html."""
        path = Path(self.source)
        return f"{path.parent.name if path.stem == 'README' else path.stem.lower()}.html"


def sources(root: Path = ROOT) -> list[str]:
    """Every page, and every further Markdown file of docs/, by its path from `root`."""
    listed = [source for chapter in NAV.values() for source in chapter]
    found = sorted(path.relative_to(root).as_posix() for path in (root / "docs").glob("*.md"))
    if forgotten := [source for source in found if source not in listed]:
        raise DocsError(f"not in the navigation of docs/build.py: {', '.join(forgotten)}")
    return listed


def render(root: Path = ROOT) -> list[Page]:
    """Every page as HTML, with links and generated blocks checked.

    Raises:
        DocsError: a link that leads nowhere, or a generated block that is stale.
    """
    pages = [_rendered(root, source) for source in sources(root)]
    by_source = {page.source: page for page in pages}
    faults = [fault for page in pages for fault in _link_faults(root, page, by_source)]
    faults += [
        f"{source}: generated block {name!r} is stale; run python -m docs.build --write"
        for source in (FRONT, *by_source)
        for _, name, text, _ in _BLOCK.findall((root / source).read_text("utf-8"))
        if text != f"{_generated(name)}\n"
    ]
    if faults:
        raise DocsError("\n".join(faults))
    return pages


def write_generated(root: Path = ROOT) -> None:
    """Renew the generated blocks of committed pages."""
    for source in (FRONT, *sources(root)):
        text = (root / source).read_text("utf-8")
        renewed = _BLOCK.sub(lambda m: f"{m[1]}{_generated(m[2])}\n{m[4]}", text)
        if renewed != text:
            (root / source).write_text(renewed, "utf-8")


def build(out: Path, root: Path = ROOT) -> int:
    """Write the site into `out`; how many pages it has."""
    pages = render(root)
    template = Environment(loader=FileSystemLoader(root / "docs"), autoescape=True).get_template(
        "page.html.jinja"
    )
    by_source = {page.source: page for page in pages}
    chapters = {name: [by_source[one] for one in listed] for name, listed in NAV.items()}
    out.mkdir(parents=True, exist_ok=True)
    for page in pages:
        (out / page.file).write_text(template.render(page=page, chapters=chapters), "utf-8")
    return len(pages)


def _rendered(root: Path, source: str) -> Page:
    page = Page(source)
    text = (root / source).read_text("utf-8")
    tokens = _MARKDOWN.parse(_COMMENT.sub("", text))
    for token, inline in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and inline is not None:
            _anchor(page, token, inline)
        for child in token.children or ():
            if child.type == "link_open":
                page.links.append(str(child.attrs["href"]))
                child.attrs["href"] = _site_link(root, source, page.links[-1])
    page.body = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    page.body = page.body.replace("<table>", '<div class="wide"><table>')
    page.body = page.body.replace("</table>", "</table></div>")
    return page


@cache
def _generated(name: str) -> str:
    return GENERATED[name]()


def _anchor(page: Page, token: Token, inline: Token) -> None:
    said = "".join(child.content for child in inline.children or ())
    page.title = page.title or said
    slug = re.sub(r"[^\w\- ]", "", said.lower()).strip().replace(" ", "-")
    while slug in page.anchors:
        slug += "-"
    page.anchors.append(slug)
    token.attrs["id"] = slug
    if token.tag == "h2":
        page.chapters.append((slug, said))


def _target(root: Path, source: str, link: str) -> tuple[str, str]:
    """Path from the root, and anchor, of a link that stands in `source`."""
    path, _, anchor = link.partition("#")
    full = ((root / source).parent / path).resolve() if path else root / source
    return (full.relative_to(root).as_posix() if full.is_relative_to(root) else path), anchor


def _site_link(root: Path, source: str, link: str) -> str:
    if re.match(r"https?:", link):
        return link
    path, anchor = _target(root, source, link)
    return Page(path).file + (f"#{anchor}" if anchor else "")


def _link_faults(root: Path, page: Page, pages: dict[str, Page]) -> list[str]:
    faults = []
    for link in page.links:
        if re.match(r"https://[\w.-]+(/|$)", link):
            continue
        path, anchor = _target(root, page.source, link)
        if path not in pages:
            faults.append(f"{page.source}: {link} is no page; write files as `path`")
        elif anchor and anchor not in pages[path].anchors:
            faults.append(f"{page.source}: {link}: {path} has no heading {html.escape(anchor)!r}")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or renew what is generated; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    parser.add_argument("--write", action="store_true", help="renew generated blocks and stop")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.write:
            write_generated()
            return 0
        print(f"wrote {build(chosen.out)} pages to {chosen.out}/index.html")  # noqa: T201 (a tool)
    except (DocsError, LookupError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (a tool)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
