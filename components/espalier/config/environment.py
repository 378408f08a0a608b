"""Profile section `environment`: the family of tasks, its settings, and where programs run.

The name of a family is that of a built-in one (`search_qa`, `python_math`), of an entry point of
the group `espalier.environments`, or a path such as `my_package.prices:Prices`.
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
    ends_by_call: ClassVar[bool]
    converses: ClassVar[bool]
    further_terms: ClassVar[frozenset[str]]

    def outcome_span(self, settings: EnvironmentConfig) -> tuple[float, float]:
        """Lowest and highest value that its verifier returns."""
        ...

    def check(self, profile: Profile) -> None:
        """Raise a ValueError if another section of the profile does not fit the family."""
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
    """Its class, as module:Class."""
    source: str
    """"built-in", or the distribution that has its entry point."""


def installed_families() -> list[InstalledFamily]:
    """The families that are installed, by name; a built-in one hides another of its name."""
    return [_entry_points()[name] for name in sorted(_entry_points())]


def family_names() -> list[str]:
    """Names of the installed families, sorted."""
    return [family.name for family in installed_families()]


@lru_cache(maxsize=64)
def family_class(name: str) -> FamilyClass:
    """Class of the family with this name, or with this path module:Class.

    Raises:
        ValueError: there is none, or the class is not a family.
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

    Their tools, tasks and `verify` determine an artifact, just as the profile does. The sources of
    espalier itself are identified by its version instead.

    Raises:
        ValueError: there is no such family.
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
    """Whether `ingest` reads [knowledge] for any of the families.

    Raises:
        ValueError: there is no such family.
    """
    classes = (cast("type[object]", family_class(name)) for name in environment.families())
    return any(issubclass(one, ReadsKnowledge) for one in classes)


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
        return family.config.model_validate(named, extra=extra, context={"extra": extra})
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
"""Longest run of a program in an environment's sandbox, seconds."""


class _SandboxConfig(Section):
    size: int = Field(default=4, ge=1)
    """Most sandboxes at one time."""
    max_uses: int = Field(default=256, ge=1)
    """Number of uses after which a sandbox is replaced."""
    memory_mb: int = Field(default=256, ge=32)
    """Memory of a program, MiB. The kernel gives no process more; what several processes of a
    program hold together is measured every 0.1 s, and may reach several times as much before they
    are killed."""


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
