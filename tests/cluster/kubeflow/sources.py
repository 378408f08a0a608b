"""Programs of Kubeflow Pipelines and Argo Workflows, built once from checkouts and kept."""

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.cluster import building, checkouts
from tests.cluster.places import ClusterError

_ARGO_MODULE = "github.com/argoproj/argo-workflows/v4"
_METADATA_MODULE = "github.com/kubeflow/pipelines/third_party/ml-metadata"


class Program(NamedTuple):
    """A program and where its source lies."""

    name: str
    checkout: str
    package: str
    needs_cgo: bool = False


PROGRAMS = (
    Program("driver", "pipelines", "./backend/src/v2/cmd/driver"),
    Program("launcher-v2", "pipelines", "./backend/src/v2/cmd/launcher-v2"),
    # it names a database of its own tests, sqlite, whose client is written in C
    Program("apiserver", "pipelines", "./backend/src/apiserver", needs_cgo=True),
    Program("scheduledworkflow", "pipelines", "./backend/src/crd/controller/scheduledworkflow"),
    Program("persistence-agent", "pipelines", "./backend/src/agent/persistence"),
    Program("workflow-controller", "argo", "./cmd/workflow-controller"),
    Program("argoexec", "argo", "./cmd/argoexec"),
)


class Sources(NamedTuple):
    """The two checkouts."""

    pipelines: Path
    argo: Path

    @property
    def version(self):
        """Release of Kubeflow Pipelines, which its images have as their tag."""
        return (self.pipelines / "VERSION").read_text().strip()

    @property
    def argo_version(self):
        """Release of Argo Workflows that this release was made for."""
        return checkouts.required(self.pipelines / "go.mod", _ARGO_MODULE)


def kept_in(places):
    """Where programs are kept between clusters."""
    return places.cache / "kubeflow"


def found_in(folder):
    """The checkouts below a folder.

    Raises:
        ClusterError: one of them is not there.
    """
    pipelines = folder / "pipelines"
    argo = next(
        (path for name in ("argo-workflows", "argo") if (path := folder / name).is_dir()), None
    )
    if argo is None or not (pipelines / "backend").is_dir():
        raise ClusterError(
            f"{folder}: no checkouts of kubeflow/pipelines and argoproj/argo-workflows there; "
            "clone them as DIR/pipelines and DIR/argo-workflows, and name DIR by --sources"
        )
    return Sources(pipelines.resolve(), argo.resolve())


def build(sources, programs, say):
    """Build what is not kept yet of these sources.

    Args:
        sources: the checkouts, which stay as they are.
        programs: the folder to keep programs in.
        say: told what took how many seconds.

    Raises:
        ClusterError: Go says why one cannot be built.
    """
    programs.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        checkout = sources.pipelines if program.checkout == "pipelines" else sources.argo
        flags = _module_flags(sources, programs) if program.checkout == "pipelines" else ()
        seconds = checkouts.build_once(
            checkout, program.package, programs / program.name, *flags,
            state=checkouts.state_of(checkout, of=program), needs_cgo=program.needs_cgo,
        )  # fmt: skip
        if seconds:
            say(f"built {program.name}", seconds)


def _module_flags(sources, programs):
    """A go.mod of our own: Go's module proxy has neither Argo nor ML Metadata's stubs."""
    copy = programs / "go.mod"
    shutil.copyfile(sources.pipelines / "go.mod", copy)
    shutil.copyfile(sources.pipelines / "go.sum", programs / "go.sum")
    for module, path in (
        (_ARGO_MODULE, sources.argo),
        (_METADATA_MODULE, sources.pipelines / "third_party" / "ml-metadata"),
    ):
        building.go(programs, "mod", "edit", f"-replace={module}={path}", str(copy))
    return (f"-modfile={copy}",)
