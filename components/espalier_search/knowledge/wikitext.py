"""Turns the wikitext of a page into the plain text that its reader sees."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from espalier_search.knowledge.sources import with_plain_raising


class _Markup(NamedTuple):
    """What is replaced in wikitext, and how every match of it ends."""

    pattern: re.Pattern[str]
    end: re.Pattern[str]
    by: str = " "

    def replaced(self, text: str) -> str:
        """The text with each match replaced, in time linear in its length.

        The pattern is applied up to the last end marker alone: behind it, every opening marker
        would scan the rest of the text for an end that is not there.
        """
        last = max((found.end() for found in self.end.finditer(text)), default=0)
        return self.pattern.sub(self.by, text[:last]) + text[last:]


def _markup(pattern: str, end: str, by: str = " ") -> _Markup:
    flags = re.DOTALL | re.IGNORECASE | re.MULTILINE
    return _Markup(re.compile(pattern, flags), re.compile(end, flags), by)


_DROPPED = (
    _markup(r"<!--.*?-->", "-->"),
    _markup(r"<ref[^<>]*+(?<=/)>", "/>"),
    *(
        _markup(rf"<{name}[^<>]*+>.*?</{name}>", f"</{name}>")
        for name in ("math", "gallery", "timeline", "syntaxhighlight", "ref")
    ),
)
_INNERMOST_TEMPLATE = re.compile(r"\{\{[^{}]*+\}\}")
_TABLE = _markup(r"^\{\|.*?^\|\}", r"^\|\}")
NO_TEXT: Sequence[str] = ("File", "Image", "Category")
"""Namespaces whose links show no text. Wikis of every language accept these English names."""
_LINK = re.compile(r"\[\[(?:[^\[\]|]*+\|)?([^\[\]|]*+)\]\]")
_EXTERNAL_LINK = _markup(r"\[\w++://[^\s\]]++\s*+([^\]]*+)\]", r"\]", r"\1")
_TAG = _markup(r"</?\w[^>]*+>", ">")
_HEADING = re.compile(r"^=.*=[^\S\n]*$", re.MULTILINE)
_QUOTES = re.compile(r"'{2,}")
_LONG_REFERENCE = re.compile(r"&#\d{8,};?")
"""A number of no character, which may have more digits than Python turns into a number."""
_MAX_NESTING = 20


def plain_text(wikitext: str, no_text: Sequence[str] = NO_TEXT) -> str:
    """Return wikitext as readable lines: no templates, tables, references, files or markup.

    Args:
        wikitext: the source of an article.
        no_text: namespaces of links that show no words, such as those of files.
    """
    text = wikitext
    for dropped in _DROPPED:
        text = dropped.replaced(text)
    for _ in range(_MAX_NESTING):
        text, replaced = _INNERMOST_TEMPLATE.subn(_shown, text)
        if not replaced:
            break
    text = _silent_link(tuple(no_text)).sub(" ", _TABLE.replaced(text))
    text = _EXTERNAL_LINK.replaced(_LINK.sub(r"\1", text))
    text = _HEADING.sub(lambda found: found[0].rstrip().strip("=").strip(), text)
    text = _QUOTES.sub("", _TAG.replaced(with_plain_raising(text)))
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text)).replace("\xa0", " ")


@cache
def _silent_link(names: tuple[str, ...]) -> re.Pattern[str]:
    any_name = "|".join(map(re.escape, names))
    return re.compile(
        rf"\[\[(?:{any_name}):[^\[\]]*+(?:\[\[[^\[\]]*+\]\][^\[\]]*+)*+\]\]", re.IGNORECASE
    )


# ------------------------------------------------------------------------------------- templates

_Given = Sequence[str]
_Named = Mapping[str, str]
_Show = Callable[[_Given, _Named], str]


def _shown(template: re.Match[str]) -> str:
    """Return the text that a template produces: of those in `_SHOWN_BY`, a blank for others."""
    linked = _LINK.sub(r"\1", template[0][2:-2])  # the bar in a link parts no arguments
    head, *parts = (part.strip() for part in linked.split("|"))
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    given = [part for part in parts if part and "=" not in part]
    given += [named[str(place)].strip() for place in range(1, 4) if str(place) in named]
    name, _, number = head.partition(":")
    if name.lower() == "formatnum":
        return number.strip()
    if name in _SIGNS:
        return _SIGNS[name]
    show = _TEMPLATES.get(name.lower(), _last if name.startswith("lang-") else None)
    return show(given, named) if show and given else " "


def _first(given: _Given, _named: _Named) -> str:
    return given[0]


def _last(given: _Given, _named: _Named) -> str:
    return given[-1]


def _behind(word: str) -> _Show:
    return lambda given, _named: word + given[0]


def _price(sign: str) -> _Show:
    return lambda given, _named: sign + " ".join(given[:2])


def _ratio(given: _Given, _named: _Named) -> str:
    *whole, over, under = ("1", *given) if len(given) == 1 else given[:3]
    return " ".join((*whole, f"{over}/{under}"))


def _date(given: _Given, _named: _Named) -> str:
    is_day = all(map(str.isdigit, given[:3]))
    return "-".join(part.zfill(2) for part in given[:3]) if is_day else given[0]


def _value(given: _Given, named: _Named) -> str:
    """The number of {{val}} with its power of ten and its unit."""
    number = "\u2013".join(given[:3:2]) if _RANGE.intersection(given[1:2]) else given[0]
    power = f"\u00d710^{named['e'].strip()}" if "e" in named else ""
    unit = next((named[key].strip() for key in ("u", "ul") if key in named), "")
    per = next((f"/{named[key].strip()}" for key in ("up", "upl") if key in named), "")
    return f"{named.get('p', '').strip()}{number}{power} {unit}{per}".strip()


def _measured(given: _Given, _named: _Named) -> str:
    """The measure that {{convert}} begins with: `10 km`, `10 to 20 km`, `5 ft 11 in`."""
    shown = [given[0]]
    for before, part in pairwise(given):
        if not _AMOUNT.match(part) and before not in _RANGE and not _AMOUNT.match(before):
            break  # the unit that it is converted to
        shown.append(part)
    plain = " ".join("\u2013" if part in ("-", "to(-)") else part for part in shown)
    return _SCALED.sub("\u00d710^\\1 ", plain.replace(" \u2013 ", "\u2013"))


_AMOUNT = re.compile(r"[-+\u2212]?\.?\d")
_SCALED = re.compile(r" e(\d{1,2})(?=[a-zA-Z])")
"""A unit of {{convert}} in thousands or millions: e6acre."""
_RANGE = frozenset(
    {"-", "\u2013", "to", "and", "or", "by", "x", "\u00d7", "to(-)", "+/-", "\u00b1"}
)
_SIGNS = {
    "ndash": "\u2013", "snd": " \u2013 ", "spaced ndash": " \u2013 ", "mdash": "\u2014",
    "nbsp": " ",
}  # fmt: skip
_SHOWN_BY: Sequence[tuple[_Show, Sequence[str]]] = (
    (_first, ("abbr", "big", "flag", "flagcountry", "math", "mvar", "nobold", "nobr", "nobreak",
              "nowrap", "sic", "small", "sub", "tooltip")),
    (_last, ("lang", "langx", "transl", "transliteration")),
    (lambda given, _named: "".join(given), ("chem", "chem2")),
    (lambda given, _named: " ".join(given[:2]), ("ship",)),
    (lambda given, named: named.get("lt", given[0]), ("ill", "interlanguage link")),
    (lambda given, _named: f"<sup>{given[0]}</sup>", ("sup",)),
    (_measured, ("convert", "cvt")),
    (_value, ("val",)),
    (_ratio, ("frac", "fraction", "sfrac")),
    (_date, ("birth date", "birth date and age", "bda", "dob", "death date", "death date and age",
             "start date", "start date and age", "end date", "film date")),
    (_behind("c. "), ("circa", "c.")),
    (_behind("as of "), ("as of",)),
    (_behind("\u00d710^"), ("e",)),
    *((_behind(f"{ship.upper()} "), (ship,))
      for ship in ("hms", "hmas", "hmcs", "rms", "sms", "ss", "uss")),
    (_price("US$"), ("us$", "usd")),
    (_price("A$"), ("a$", "aud")),
    (_price("C$"), ("c$", "cad")),
    (_price("\u00a3"), ("\u00a3", "gbp")),
    (_price("\u20ac"), ("\u20ac", "eur", "euro")),
    (_price("\u00a5"), ("\u00a5", "jpy")),
    (_price("\u20b9"), ("\u20b9", "inr")),
)  # fmt: skip
"""What shows the arguments of a template, of which there is one at least; and its names."""
_TEMPLATES = {name: show for show, names in _SHOWN_BY for name in names}
