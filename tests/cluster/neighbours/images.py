"""An image for each of the neighbours' programs, which are static."""

from tests.cluster import images
from tests.cluster.neighbours.sources import PROGRAMS

_ENTRYPOINTS = {"agent-sandbox": "agent-sandbox-controller"}
"""Where it is not `manager`, as their Dockerfiles and manifests have it."""
_ENVIRONMENT = ["PATH=/usr/bin:/bin"]


def name_of(sources, name):
    """The image of a neighbour, with the tag of its sources."""
    return f"localhost/{name}:{sources.tag(name)}"


def archives(sources, programs, wanted):
    """Yield (name, archive) for `ctr images import`, one after the other: they are large."""
    for one in PROGRAMS:
        if one.name not in wanted:
            continue
        entrypoint = _ENTRYPOINTS.get(one.name, "manager")
        content = (programs / one.name).read_bytes()
        members = [*images.skeleton(), images.file_member(entrypoint, content, mode=0o755)]
        image = images.archive(
            name_of(sources, one.name), members, [f"/{entrypoint}"], _ENVIRONMENT
        )
        yield one.name, image
