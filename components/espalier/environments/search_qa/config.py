"""Settings of question answering: [search] describes its tool."""

from __future__ import annotations

from espalier.config import EnvironmentConfig


class SearchQAConfig(EnvironmentConfig):
    """Question answering over the knowledge."""

    name: str = "search_qa"
