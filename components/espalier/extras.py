"""Extras of the distribution, and the extra that installs a missing package.

espalier-agents            the client: compile and submit pipelines, read runs, write reports
espalier-agents[train]     packages for stages and serving: torch, transformers, MLflow ...
espalier-agents[ray]       training and synthesis on the nodes of a Ray cluster
espalier-agents[vllm]      a model run by vLLM in the process of a stage
espalier-agents[cluster]   what the services of k8s/ need

Environments and the viewer are in distributions beside it, which bring what they need themselves:
espalier-agents-search, espalier-agents-environments, espalier-agents-interop, espalier-agents-ui.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

DISTRIBUTION = "espalier-agents"
"""Name of the distribution; another project owns `espalier` on PyPI."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*?\bextra\s*==\s*['\"](\w+)['\"])?")
_DEVELOPMENT = "dev"


class Requirement(NamedTuple):
    """A package that the distribution requires."""

    name: str
    extra: str | None
    """Extra that requires it; None: every installation has it."""


def requirements() -> list[Requirement]:
    """Requirements of the installed distribution without development tools; empty if unknown."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return []
    parsed = [Requirement(*match.groups()) for line in lines if (match := _REQUIREMENT.match(line))]
    return [one for one in parsed if one.extra != _DEVELOPMENT]


def install_command(extra: str) -> str:
    """Command that installs `extra`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The message for a package that is not installed; None where no extra installs it.

    Args:
        error: error of the import.
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
    """Module of a package; all packages of the extras have one module of the same name."""
    return re.sub(r"[-.]+", "_", package).lower()
