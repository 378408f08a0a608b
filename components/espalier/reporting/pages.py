"""What HTML pages without scripts share: templates with their filters, and the stylesheet."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from espalier.reporting import formats


def page_environment() -> Environment:
    """Templates and filters of the pages; all values are escaped."""
    environment = Environment(
        loader=PackageLoader("espalier.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"scalar": _scalar, "words": lambda name: formats.words(str(name))}
    return environment


def page_style(environment: Environment) -> Markup:
    """The stylesheet of the pages."""
    return Markup(environment.get_template("pages.css.jinja").render())  # no foreign text in it


def _scalar(value: object) -> str:
    return formats.visible(formats.number(value))
