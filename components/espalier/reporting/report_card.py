"""Report cards of `espalier evaluate`, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from espalier.reporting.formats import visible
from espalier.reporting.pages import page_environment, page_style

_HOLDS = {True: "yes", False: "no", None: "for the reader"}


def card_html(results: Mapping[str, Any]) -> str:
    """The page as HTML, without scripts or external resources; all values are escaped.

    Args:
        results: content of results.json of `espalier evaluate`.
    """
    environment = page_environment()
    environment.filters |= _FILTERS
    template = environment.get_template("report_card.html.jinja")
    return template.render(style=page_style(environment), results=results)


def card_markdown(results: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    environment = Environment(
        loader=PackageLoader("espalier.reporting", "templates"),
        autoescape=False,  # not HTML: `cell` escapes Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    return environment.get_template("report_card.md.jinja").render(results=results)


def cell(value: object) -> str:
    """Text in a cell of a Markdown table."""
    text = " ".join(visible(str(value)).split())
    return text.replace("|", "\\|").replace("<", "&lt;")


def percent(rate: float | None) -> str:
    """A rate of 0-1 as `67.4`."""
    return "-" if rate is None else f"{100 * rate:.1f}"


def ends(interval: list[float] | None) -> str:
    """Ends of an interval of rates as `63.2 to 71.5`."""
    return "-" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def signed(rate: float) -> str:
    """A difference of rates as `+4.1`."""
    return f"{100 * rate:+.1f}"


def flat(value: object) -> str:
    """A fact in one line: a table as `key: value` pairs."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {flat(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(flat(item) for item in value)
    return str(value)


def _holds(value: bool | None) -> str:  # noqa: FBT001 (a filter of templates)
    return _HOLDS[value]


_FILTERS = {
    "cell": cell,
    "percent": percent,
    "ends": ends,
    "signed": signed,
    "flat": flat,
    "holds": _holds,
}
