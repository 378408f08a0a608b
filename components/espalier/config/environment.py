"""Profile section `environment`: the family of tasks, its settings, and where programs run.

The name of a family is that of a built-in one (`search_qa`, `python_math`), of an entry point of
the group `espalier.environments`, or a path such as `my_package.prices:Prices`.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, cast

from pydantic import BeforeValidator, Field, ValidationError

from espalier.config.cluster import PinnedImage
from espalier.config.data import Section
from espalier.config.faults import fault_lines
from espalier.records import file_digest, json_digest

if TYPE_CHECKING:
    from espalier.config.profile import Profile

ENTRY_POINTS = "espalier.environments"
_BUILT_IN = {
    "code": "espalier.environments.code:Code",
    "customer_service": "espalier.environments.customer_service:CustomerService",
    "function_calling": "espalier.environments.function_calling:FunctionCalling",
    "harbor": "espalier.environments.harbor:Harbor",
    "mcp": "espalier.environments.mcp:Mcp",
    "mixture": "espalier.environments.mixture:Mixture",
    "openenv": "espalier.environments.openenv:OpenEnv",
    "procedural": "espalier.environments.procedural:Procedural",
    "python_math": "espalier.environments.python_math:PythonMath",
    "search_qa": "espalier.environments.search_qa:SearchQA",
    "shop": "espalier.environments.shop:Shop",
    "software_repair": "espalier.environments.software_repair:SoftwareRepair",
    "sql": "espalier.environments.sql:Sql",
    "web": "espalier.environments.web:Web",
}


class EnvironmentConfig(Section):
    """Base class of a family's section; a family adds its own keys in a subclass."""

    name: str

    def external_files(self) -> dict[str, Path | None]:
        """Profile key -> the user's file that it names; `ingest` depends on its content."""
        return {}

    def families(self) -> tuple[str, ...]:
        """Names of the families whose code and knowledge it needs; several for a mixture."""
        return (self.name,)


class ClosedBook(NamedTuple):
    """Prompt for a question that the policy has to answer from memory, without tools."""

    instructions: str
    examples: tuple[tuple[str, str], ...] = ()
    """Pairs of question and answer that precede it; no task may ask one of them."""


class FamilyClass(Protocol):
    """Attributes of a family that a profile is checked against before anything runs."""

    name: ClassVar[str]
    config: ClassVar[type[EnvironmentConfig]]
    self_play: ClassVar[frozenset[str]]
    reads_knowledge: ClassVar[bool]
    writes_agent_texts: ClassVar[bool]
    ends_by_call: ClassVar[bool]
    converses: ClassVar[bool]
    relabels_failures: ClassVar[bool]
    closed_book: ClassVar[ClosedBook | None]
    further_terms: ClassVar[frozenset[str]]

    def outcome_span(self, settings: EnvironmentConfig) -> tuple[float, float]:
        """Lowest and highest value that its verifier returns."""
        ...

    def check(self, profile: Profile) -> None:
        """Raise a ValueError if another section of the profile does not fit the family."""
        ...


class InstalledFamily(NamedTuple):
    """A family that a profile can name without a colon."""

    name: str
    where: str
    """Its class, as module:Class."""
    source: str
    """"built-in", or the distribution that has its entry point."""


def installed_families() -> list[InstalledFamily]:
    """Installed families, sorted by name; a built-in one hides another of the same name."""
    found = {
        point.name: InstalledFamily(
            point.name, point.value, point.dist.name if point.dist else "entry point"
        )
        for point in _entry_points()
    }
    found |= {name: InstalledFamily(name, where, "built-in") for name, where in _BUILT_IN.items()}
    return [found[name] for name in sorted(found)]


def family_names() -> list[str]:
    """Names of the installed families, sorted."""
    return [family.name for family in installed_families()]


@lru_cache(maxsize=64)
def family_class(name: str) -> FamilyClass:
    """Class of the family with this name, or with this path module:Class.

    Raises:
        ValueError: there is none, or the class is not a family.
    """
    where = _BUILT_IN.get(name) or next((p.value for p in _entry_points() if p.name == name), None)
    if where is None and ":" in name:
        where = name
    if where is None:
        known = family_names()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"installed are {', '.join(known)};"
        raise ValueError(
            f"no family of tasks is named {name!r}; {hint} name a family of your own by an "
            f"entry point of the group {ENTRY_POINTS}, or as module:Class"
        )
    module, _, attribute = where.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the family {name!r} cannot be loaded from {where} ({error})") from error
    if not (isinstance(found, type) and hasattr(found, "questions") and hasattr(found, "config")):
        raise ValueError(
            f"{where} is not a family: derive it from espalier.environments.SimpleFamily"
        )
    return cast("FamilyClass", found)


def family_code_digest(environment: EnvironmentConfig) -> str | None:
    """Digest of the Python sources of the families' packages; None for built-in ones.

    Their tools, tasks and `verify` determine an artifact, just as the profile does. The sources of
    espalier itself are identified by its version instead.

    Raises:
        ValueError: there is no such family.
    """
    digests = {name: digest for name in environment.families() if (digest := _package_digest(name))}
    if len(digests) > 1:
        return json_digest(digests)
    return next(iter(digests.values()), None)


def _package_digest(name: str) -> str | None:
    module = family_class(name).__module__
    package = module.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return None
    # a namespace package has no file of its own: take the family's module instead
    given = sys.modules[package].__file__ or sys.modules[module].__file__
    if given is None:
        return None
    path = Path(given)
    sources = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return json_digest(
        {source.relative_to(path.parent).as_posix(): file_digest(source) for source in sources}
    )


def reads_knowledge(environment: EnvironmentConfig) -> bool:
    """Whether `ingest` reads [knowledge] for any of the families.

    Raises:
        ValueError: there is no such family.
    """
    return any(family_class(name).reads_knowledge for name in environment.families())


def parsed_environment(
    content: object, *, extra: Literal["ignore"] | None = None
) -> EnvironmentConfig:
    """Parse the section `environment` with the settings class of the family that it names.

    Args:
        content: the section.
        extra: "ignore" skips keys that the family does not have; None refuses them.

    Raises:
        ValueError: there is no such family, or it refuses the settings.
    """
    if isinstance(content, EnvironmentConfig):
        return content
    if not isinstance(content, dict):
        raise ValueError("environment must be a section with the key `name`")
    table = cast("dict[str, object]", content)
    family = family_class(str(table.get("name", "search_qa")))
    try:
        named = {**table, "name": table.get("name", "search_qa")}
        return family.config.model_validate(named, extra=extra)
    except ValidationError as error:
        faults = fault_lines(error, family.config, within=("environment",))
        raise ValueError("\n  ".join(faults)) from error


def named_environment(content: object) -> EnvironmentConfig:
    """Parse a family's section, or its bare name, which takes the defaults.

    Raises:
        ValueError: see `parsed_environment`.
    """
    return parsed_environment({"name": content} if isinstance(content, str) else content)


@lru_cache(maxsize=1)
def _entry_points() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=ENTRY_POINTS))


MOST_PROGRAM_S = 60.0
"""Longest run of a program in an environment's sandbox, seconds."""


class _SandboxConfig(Section):
    size: int = Field(default=4, ge=1)
    """Most sandboxes at one time."""
    max_uses: int = Field(default=256, ge=1)
    """Number of uses after which a sandbox is replaced."""
    memory_mb: int = Field(default=256, ge=32)
    """Memory limit per program, MiB."""


class LocalSandboxConfig(_SandboxConfig):
    """Bubblewrap sandboxes on this machine, without root or an image."""

    backend: Literal["local"] = "local"
    packages: tuple[str, ...] = ("numpy", "sympy")
    """This machine's Python packages that programs may import."""


class PodmanSandboxConfig(_SandboxConfig):
    """Podman containers on this machine."""

    backend: Literal["podman"] = "podman"
    image: PinnedImage
    """An image of sandbox-images/, by digest or by a tag that is never moved."""


class KubernetesSandboxConfig(_SandboxConfig):
    """Pods of the cluster that [kubernetes] describes."""

    backend: Literal["kubernetes"] = "kubernetes"
    image: PinnedImage
    """An image that the cluster can pull, by digest or by a tag that is never moved."""
    kubeconfig: Path | None = None
    """Kubeconfig of the cluster; default: the cluster that the stage itself runs in."""


def _local_unless_named(content: object) -> object:
    if not isinstance(content, dict):
        return content
    return {"backend": "local", **cast("dict[str, object]", content)}


SandboxConfig = Annotated[
    Annotated[
        LocalSandboxConfig | PodmanSandboxConfig | KubernetesSandboxConfig,
        Field(discriminator="backend"),
    ],
    BeforeValidator(_local_unless_named),
]
