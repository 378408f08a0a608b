"""Extras of the distribution: which one brings a package that is not installed.

espalier-agents            the client: compile and submit pipelines, read runs, write reports
espalier-agents[train]     what stages and serving need: torch, transformers, MLflow ...
espalier-agents[ray]       training and drawing on the nodes of a Ray cluster
espalier-agents[vllm]      a model run by vLLM in the process of a stage
espalier-agents[cluster]   what the services of k8s/ need

Environments are in distributions beside it, which bring what they need themselves:
espalier-agents-search, espalier-agents-environments and espalier-agents-interop.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

DISTRIBUTION = "espalier-agents"
"""Another project owns `espalier` on PyPI."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*?\bextra\s*==\s*['\"](\w+)['\"])?")
_OF_DEVELOPMENT = "dev"


class Requirement(NamedTuple):
    """A package that the distribution asks for."""

    name: str
    extra: str | None
    """None for what every installation has."""


def requirements() -> list[Requirement]:
    """What the installed distribution asks for, tools of development left out; empty if unknown."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return []
    parsed = [Requirement(*match.groups()) for line in lines if (match := _REQUIREMENT.match(line))]
    return [one for one in parsed if one.extra != _OF_DEVELOPMENT]


def install_command(extra: str) -> str:
    """What to type for `extra`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The message for a package that is not there; None where no extra brings it.

    Args:
        error: of the import.
    """
    module = (error.name or "").partition(".")[0]
    for requirement in requirements():
        if requirement.extra and module_of(requirement.name) == module:
            return (
                f"this needs the package {requirement.name}, which is not installed: "
                f"{install_command(requirement.extra)}"
            )
    return None


def module_of(package: str) -> str:
    """Module of a package: each package of the extras has one, of the same name."""
    return re.sub(r"[-.]+", "_", package).lower()
