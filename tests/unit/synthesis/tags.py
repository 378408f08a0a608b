"""The tag dialect with the search tool, as the tiny policy writes it."""

from espalier.dialects import SYNTAXES
from espalier_search.synthesis.search_wording import SEARCH_TOOL


def write(action):
    """The text of an action."""
    return SYNTAXES["tags"].write(action, (SEARCH_TOOL,))


def parse(text):
    """The action that a text spells."""
    return SYNTAXES["tags"].parse(text, (SEARCH_TOOL,))
