"""The site: committed pages build, their links lead somewhere, generated blocks are fresh."""

from docs import build


def test_every_page_is_built_and_in_the_navigation(tmp_path):
    assert build.build(tmp_path) == len([*tmp_path.glob("*.html")]) == len(build.sources())
