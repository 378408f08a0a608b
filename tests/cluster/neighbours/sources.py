"""The neighbours' programs, built once from checkouts and kept; and where their CRD files lie."""

import json
from pathlib import Path
from typing import NamedTuple

from tests.cluster import building, checkouts
from tests.cluster.places import ClusterError

_JOBSET_MODULE = "sigs.k8s.io/jobset"


class Neighbour(NamedTuple):
    """A project whose objects espalier makes."""

    name: str
    package: str
    """Of its program; empty where only its CRD files are read."""
    crds: str
    """Folder of its CRD files."""
    within: str = ""
    """Folder of its Go module, below the checkout."""


NEIGHBOURS = (
    Neighbour("agent-sandbox", "./cmd/agent-sandbox-controller", "k8s/crds"),
    Neighbour("kuberay", ".", "config/crd/bases", within="ray-operator"),
    Neighbour("jobset", ".", "config/components/crd/bases"),
    Neighbour("trainer", "./cmd/trainer-controller-manager", "manifests/base/crds"),
    Neighbour("kueue", "./cmd/kueue", "config/components/crd/bases"),
    Neighbour("kserve", "", "config/crd/full"),
)
"""In the order in which they are built and installed: Kueue asks at its start which kinds it has
to queue, and from then on every pod is shown to its webhooks."""
PROGRAMS = tuple(one for one in NEIGHBOURS if one.package)


class Sources(NamedTuple):
    """Name -> folder of the Go module, of what was found."""

    modules: dict[str, Path]

    def crds(self, neighbour):
        """Files of its CustomResourceDefinitions."""
        return sorted((self.modules[neighbour.name] / neighbour.crds).rglob("*.yaml"))

    def tag(self, name):
        """What its image is tagged with: the module's version, or the checkout's commit."""
        _, _, version = self.modules[name].name.partition("@")
        return version or checkouts.git(self.modules[name], "rev-parse", "--short=12", "HEAD")


def found_in(folder):
    """The checkouts below a folder, and JobSet's module where the trainer is there.

    Raises:
        ClusterError: there is none at all, or Go cannot fetch JobSet.
    """
    named = {one.name: folder / one.name / one.within for one in NEIGHBOURS}
    modules = {name: path.resolve() for name, path in named.items() if (path / "go.mod").exists()}
    if not modules:
        names = ", ".join(one.name for one in NEIGHBOURS if one.name != "jobset")
        raise ClusterError(
            f"{folder}: no checkouts there of {names}; name their folder by --sources"
        )
    if "trainer" in modules and "jobset" not in modules:
        version = checkouts.required(modules["trainer"] / "go.mod", _JOBSET_MODULE)
        had = building.go(folder, "mod", "download", "-json", f"{_JOBSET_MODULE}@{version}")
        modules["jobset"] = Path(json.loads(had)["Dir"])
    return Sources(modules)


def build(sources, programs, wanted, say):
    """Build what is not kept yet of these sources.

    Args:
        sources: the checkouts, which stay as they are.
        programs: the folder to keep programs in.
        wanted: names of those that are asked for.
        say: told what took how many seconds.

    Returns:
        Name -> why it cannot be had, of those that cannot.
    """
    failed = {}
    for one in PROGRAMS:
        if one.name not in wanted:
            continue
        try:
            seconds = _build(sources, one, programs)
        except ClusterError as error:
            failed[one.name] = str(error)
        else:
            if seconds:
                say(f"built {one.name}", seconds)
    return failed


def _build(sources, one, programs):
    if one.name not in sources.modules:
        raise ClusterError(f"no checkout of {one.name} below the folder of --sources")
    folder = sources.modules[one.name]
    # a module of Go's cache never changes under its version
    state = str(folder) if "@" in folder.name else checkouts.state_of(folder, of=one)
    return checkouts.build_once(
        folder, one.package, programs / one.name, "-mod=readonly", state=state
    )
