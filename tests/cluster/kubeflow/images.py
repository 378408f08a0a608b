"""An image for each program of Kubeflow and Argo.

They are static but for the API server, which finds the C library where the node mounts its own
environment (`tests.cluster.images`).
"""

from tests.cluster import images
from tests.cluster.kubeflow import pages

_FOLDER = "kubeflow"
_PATH = f"PATH=/{_FOLDER}:/usr/bin:/bin"
_NAMES = {
    "driver": ("ghcr.io/kubeflow/kfp-driver", "65532"),
    "launcher-v2": ("ghcr.io/kubeflow/kfp-launcher", "65532"),
    "apiserver": ("ghcr.io/kubeflow/kfp-api-server", "1000"),
    "scheduledworkflow": ("ghcr.io/kubeflow/kfp-scheduled-workflow-controller", "1000"),
    "persistence-agent": ("ghcr.io/kubeflow/kfp-persistence-agent", "1000"),
    "workflow-controller": ("quay.io/argoproj/workflow-controller", "8737"),
    "argoexec": ("quay.io/argoproj/argoexec", "8737"),
}
"""Program -> name without tag, user."""
_PAGES = "ghcr.io/kubeflow/kfp-frontend"
PAGES_COMMAND = ["node", "dist/server.js", "../client/", "3000"]
PAGES_FOLDER = f"/{_FOLDER}/server"
"""Where it is run, as by its Dockerfile."""


def tagged(sources):
    """Image name without a tag -> with the tag of these sources."""
    return {
        name: f"{name}:{sources.argo_version if 'argoproj' in name else sources.version}"
        for name in (_PAGES, *(name for name, _ in _NAMES.values()))
    }


def archives(sources, programs):
    """Yield (program, archive) for `ctr images import`, one after the other: they are large."""
    tags = tagged(sources)
    for program, (name, user) in _NAMES.items():
        content = (programs / program).read_bytes()
        members = [
            *images.skeleton(),
            images.file_member(f"{_FOLDER}/{program}", content, mode=0o755),
        ]
        yield program, images.archive(tags[name], members, [program], [_PATH], user=user)
    if pages.is_built(programs):
        yield pages.FOLDER, _pages(tags[_PAGES], programs / pages.FOLDER)


def _pages(tag, folder):
    files = [
        images.file_member(
            f"{_FOLDER}/{path.relative_to(folder)}",
            path.read_bytes(),
            mode=0o755 if path.name == "node" else 0o644,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return images.archive(tag, [*images.skeleton(), *files], PAGES_COMMAND, [_PATH], user="1000")
