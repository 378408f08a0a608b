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
    """The generated site; it has at least as many pages as records."""

    products: int = Field(default=24, ge=2, le=60)
    """Number of products of a site."""
    threads: int = Field(default=12, ge=2, le=60)
    """Number of threads in its forum."""
    issues: int = Field(default=12, ge=2, le=60)
    """Number of issues in its tracker."""
    users: int = Field(default=8, ge=2, le=30)
    """Number of users, including the visitor."""
    page_size: int = Field(default=8, ge=1, le=60)
    """Number of links on a page of a list."""
    menu: tuple[Menu, ...] = _MENU
    """Sections that every page links to."""
    filters: bool = True
    """Whether lists have a form that narrows them."""
    seed: int = 0
    """Seed of all records; equal for runs that are to be compared."""


class WebConfig(EnvironmentConfig):
    """A site of pages and forms, read as text, as in WebArena (arXiv:2307.13854)."""

    name: str = "web"
    sites: int = Field(default=40, ge=1, le=2000)
    """Number of sites per split; each name of a product, thread or issue belongs to one split."""
    site: SiteConfig = SiteConfig()
    kinds: EachOnce[TaskKind] = _KINDS
    """Kinds of tasks."""
    observation: Observation = "tree"
    """Form of a page's text: the accessibility tree, HTML with ids as in WebGUM, the text DOM of
    computer-use agents, or the tree with each id after its name, for small policies."""
    max_observation_characters: int = Field(default=4000, ge=64)
    """Longer pages are cut off at the end."""
    served: Literal["process", "sandbox"] = "process"
    """Where the site runs: in this process, since its code is espalier's own, or in a sandbox."""
    page_timeout_s: float = Field(default=10.0, gt=0, le=MOST_PROGRAM_S)
    """Time limit of a page that a sandbox serves."""
    sandbox: SandboxConfig = LocalSandboxConfig(packages=())
