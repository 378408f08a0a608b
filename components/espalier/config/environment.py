"""Profile section `environment`: the family of tasks, its settings, and where programs run.

A family is named by what it is registered under (`search_qa`, `python_math`, or an entry point of
the group `espalier.environments`), or by where it is, as `my_package.prices:Prices`.
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, cast

from pydantic import BeforeValidator, Field, ValidationError

from espalier.config.cluster import PinnedImage
from espalier.config.data import Section
from espalier.config.faults import fault_lines
from espalier.named_classes import OWN_PACKAGES, OpenTo, loaded, package_digest
from espalier.records import json_digest

if TYPE_CHECKING:
    from espalier.config.profile import Profile
    from espalier.sandbox import Backend, Limits

ENTRY_POINTS = "espalier.environments"


class EnvironmentConfig(Section):
    """What every family's section has; a family adds its own keys in a class derived from this."""

    name: str

    def external_files(self) -> dict[str, Path | None]:
        """The user's own files by the profile key that names them; `ingest` depends on them."""
        return {}

    def families(self) -> tuple[str, ...]:
        """Names of the families whose code and knowledge it needs: a mixture has several."""
        return (self.name,)


class ClosedBook(NamedTuple):
    """What a policy reads before a question that it is to answer from memory, without tools."""

    instructions: str
    examples: tuple[tuple[str, str], ...] = ()
    """Questions that were asked before, with the answers given; none may be what a task asks."""


class FamilyClass(Protocol):
    """What a profile needs of a family before anything runs."""

    name: ClassVar[str]
    config: ClassVar[type[EnvironmentConfig]]
    ends_by_call: ClassVar[bool]
    converses: ClassVar[bool]
    further_terms: ClassVar[frozenset[str]]

    def outcome_span(self, settings: EnvironmentConfig) -> tuple[float, float]:
        """Least and most that its verifier returns."""
        ...

    def check(self, profile: Profile) -> None:
        """Raise a ValueError where another section of the profile does not fit the family."""
        ...

    def check_options(self, profile: Profile) -> None:
        """`check`, and that the family can do what optional keys ask of it."""
        ...


class ReadsKnowledge:
    """Mixin of a family for which `ingest` reads [knowledge]."""


class InstalledFamily(NamedTuple):
    """A family that a profile can name without a colon."""

    name: str
    where: str
    """As module:Class."""
    source: str
    """"built-in", or the distribution whose entry point it is."""


def installed_families() -> list[InstalledFamily]:
    """The families that are installed, by name; a built-in one hides another of its name."""
    return [_entry_points()[name] for name in sorted(_entry_points())]


def family_names() -> list[str]:
    """Names of the families that are installed."""
    return [family.name for family in installed_families()]


@lru_cache(maxsize=64)
def family_class(name: str) -> FamilyClass:
    """The family of that name.

    Raises:
        ValueError: none is installed under it, or what is there is no family.
    """
    installed = _entry_points().get(name)
    where = name if ":" in name else installed and installed.where
    if where is None:
        known = family_names()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"installed are {', '.join(known)};"
        raise ValueError(
            f"no family of tasks is named {name!r}; {hint} those of espalier come with "
            "espalier-agents-search, -environments and -interop; a family of your own is named by "
            f"an entry point of the group {ENTRY_POINTS}, or as module:Class"
        )
    found: Any = loaded(where)
    if not (isinstance(found, type) and hasattr(found, "questions") and hasattr(found, "config")):
        raise ValueError(f"{where} is no family: derive it from espalier.environments.Family")
    return cast("FamilyClass", found)


def family_code_digest(environment: EnvironmentConfig) -> str | None:
    """Digest of the Python sources of the families' packages; None for built-in ones.

    Their tools, tasks and `verify` decide what an artifact holds, as a section of the profile does.
    The sources of espalier itself are named by their version.

    Raises:
        ValueError: no such family.
    """
    digests = {
        name: digest
        for name in environment.families()
        if (digest := package_digest(cast("type", family_class(name))))
    }
    if len(digests) > 1:
        return json_digest(digests)
    return next(iter(digests.values()), None)


def reads_knowledge(environment: EnvironmentConfig) -> bool:
    """Whether `ingest` reads [knowledge] for one of the families.

    Raises:
        ValueError: no such family.
    """
    classes = (cast("type[object]", family_class(name)) for name in environment.families())
    return any(issubclass(one, ReadsKnowledge) for one in classes)


def parsed_environment(
    content: object, *, extra: Literal["ignore"] | None = None
) -> EnvironmentConfig:
    """The section `environment`, read by the family that it names.

    Args:
        content: the section.
        extra: "ignore" leaves out keys that the family does not have; None refuses them.

    Raises:
        ValueError: no such family, or settings that it refuses.
    """
    if isinstance(content, EnvironmentConfig):
        return content
    if not isinstance(content, dict):
        raise ValueError("environment is a section with a name")
    table = cast("dict[str, object]", content)
    family = family_class(str(table.get("name", "search_qa")))
    try:
        named = {**table, "name": table.get("name", "search_qa")}
        return family.config.model_validate(named, extra=extra, context={"extra": extra})
    except ValidationError as error:
        faults = fault_lines(error, family.config, within=("environment",))
        raise ValueError("\n  ".join(faults)) from error


def named_environment(content: object) -> EnvironmentConfig:
    """The section of a family, or its defaults where only its name is given.

    Raises:
        ValueError: see `parsed_environment`.
    """
    return parsed_environment({"name": content} if isinstance(content, str) else content)


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, InstalledFamily]:
    found: dict[str, InstalledFamily] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        source = point.dist.name if point.dist else "entry point"
        is_own = point.module.partition(".")[0] in OWN_PACKAGES
        family = InstalledFamily(point.name, point.value, "built-in" if is_own else source)
        if point.name not in found or family.source == "built-in":
            found[point.name] = family
    return found


MOST_PROGRAM_S = 60.0
"""A program in a sandbox of an environment runs no longer than this."""


class _SandboxConfig(Section):
    size: int = Field(default=4, ge=1)
    """Sandboxes at one time."""
    max_uses: int = Field(default=256, ge=1)
    """A sandbox is replaced after so many borrowers."""
    memory_mb: int = Field(default=256, ge=32)
    """Memory limit per program, MiB."""


class LocalSandboxConfig(_SandboxConfig):
    """Isolated with bubblewrap on this machine: no root, no image."""

    backend: Literal["local"] = "local"
    packages: tuple[str, ...] = ("numpy", "sympy")
    """Python packages of this machine that programs may import."""


class PodmanSandboxConfig(_SandboxConfig):
    """Podman containers on this machine."""

    backend: Literal["podman"] = "podman"
    image: PinnedImage
    """An image of sandbox-images/, by digest or by a tag that is never moved."""


class KubernetesSandboxConfig(_SandboxConfig):
    """Pods of the cluster that [kubernetes] describes."""

    backend: Literal["kubernetes"] = "kubernetes"
    image: PinnedImage
    """One that the cluster can pull, by digest or by a tag that is never moved."""
    kubeconfig: Path | None = None
    """Kubeconfig of the cluster; unset is the cluster that the stage itself runs in."""


class OwnSandboxConfig(_SandboxConfig):
    """Base of the sections of backends of other packages, named as `backend = "module:Class"`."""

    backend: str

    @abstractmethod
    def make_backend(self, limits: Limits, links: Sequence[str]) -> Backend:
        """Return the backend.

        Args:
            limits: memory, disk, output and time of a program; a run may set lower ones.
            links: folders of the workspace that are linked from the root folder, for a backend
                whose images have no such links.
        """


def _local_unless_named(content: object) -> object:
    if not isinstance(content, dict):
        return content
    return {"backend": "local", **cast("dict[str, object]", content)}


SandboxConfig = Annotated[
    Annotated[
        LocalSandboxConfig | PodmanSandboxConfig | KubernetesSandboxConfig,
        Field(discriminator="backend"),
        OpenTo((OwnSandboxConfig,), key="backend"),
    ],
    BeforeValidator(_local_unless_named),
]
