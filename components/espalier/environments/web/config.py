"""Settings of the text web."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from espalier.config import (
    MOST_PROGRAM_S,
    EnvironmentConfig,
    LocalSandboxConfig,
    SandboxConfig,
)
from espalier.config.data import EachOnce, Section

TaskKind = Literal[
    "price", "seller", "author", "reporter", "assignee", "open",
    "comment", "vote", "assign", "close", "street", "cart", "order",
]  # fmt: skip
Menu = Literal["home", "shop", "forum", "issues", "users", "account"]
Observation = Literal["tree", "html", "dom", "words"]
_KINDS: tuple[TaskKind, ...] = (
    "price", "seller", "author", "reporter", "assignee", "open",
    "comment", "vote", "assign", "close", "street", "cart", "order",
)  # fmt: skip
_MENU: tuple[Menu, ...] = ("home", "shop", "forum", "issues", "users", "account")


class SiteConfig(Section):
    """The site that is made; its pages are at least as many as its records."""

    products: int = Field(default=24, ge=2, le=60)
    """Products of a site."""
    threads: int = Field(default=12, ge=2, le=60)
    """Threads of its forum."""
    issues: int = Field(default=12, ge=2, le=60)
    """Issues of its tracker."""
    users: int = Field(default=8, ge=2, le=30)
    """Users, the visitor among them."""
    page_size: int = Field(default=8, ge=1, le=60)
    """Links of a page of a list."""
    menu: tuple[Menu, ...] = _MENU
    """Sections that every page links to."""
    filters: bool = True
    """Whether lists can be narrowed by a form."""
    seed: int = 0
    """Of all records: the same for every run that compares with another."""


class WebConfig(EnvironmentConfig):
    """A site of pages and forms, read as text, as WebArena has it (arXiv:2307.13854)."""

    name: str = "web"
    sites: int = Field(default=40, ge=1, le=2000)
    """Sites of each split; a name of a product, a thread or an issue is of one split alone."""
    site: SiteConfig = SiteConfig()
    kinds: EachOnce[TaskKind] = _KINDS
    """What is asked for."""
    observation: Observation = "tree"
    """How a page is read: the accessibility tree, HTML with ids as WebGUM reads it, the text-DOM of
    computer-use agents, or the tree with each id behind its name, for small policies."""
    max_observation_characters: int = Field(default=4000, ge=64)
    """More than this of a page is cut off at its end."""
    served: Literal["process", "sandbox"] = "process"
    """Where the site runs: in this process, as its code is espalier's own, or in a sandbox."""
    page_timeout_s: float = Field(default=10.0, gt=0, le=MOST_PROGRAM_S)
    """Of a page that a sandbox serves."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
