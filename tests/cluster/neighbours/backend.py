"""The neighbours on a cluster that is up: their images, their objects, and when each is ready."""

import time

from tests.cluster import cluster, objects
from tests.cluster.chain import wake_servers
from tests.cluster.neighbours import images, manifests
from tests.cluster.neighbours import sources as programs_of
from tests.cluster.parts import kubectl
from tests.cluster.places import ClusterError

_READY_S = 300
INSTALLED = "ESPALIER_TEST_NEIGHBOURS"
"""Names of those that are installed, with a comma between them."""
FOLDER = "ESPALIER_TEST_NEIGHBOURS_SOURCES"
"""Where their checkouts are."""


def programs(places):
    """Where their programs are kept between clusters."""
    return places.cache / "neighbours"


def build(places, checkouts, wanted, say):
    """Build what is not kept yet; gives name -> why not, of those that cannot be had."""
    return programs_of.build(checkouts, programs(places), wanted, say)


def up(places, checkouts, wanted, say):
    """Install neighbours that are not there yet, one after the other.

    Args:
        places: of a cluster that is up.
        checkouts: from `sources.found_in`.
        wanted: names of those that were built.
        say: told what took how many seconds.

    Raises:
        ClusterError: one does not start, with what it said.
    """
    absent = [name for name in manifests.DEPLOYMENTS if name in wanted and not is_up(places, name)]
    for name, content in images.archives(checkouts, programs(places), absent):
        started = time.monotonic()
        path = places.state / f"{name}.tar"
        path.write_bytes(content)
        cluster.import_image(places, path)
        path.unlink()
        crds, rest = manifests.of(places, checkouts, name)
        objects.apply(places, crds)
        objects.apply(places, rest)
        _wait(places, name)
        say(name, time.monotonic() - started)
    wake_servers(places)


def is_up(places, name):
    """Whether a neighbour was installed."""
    deployment, namespace = manifests.DEPLOYMENTS[name], manifests.NAMESPACES[name]
    found = kubectl(places, "get", "deployment", deployment, f"--namespace={namespace}")
    return found.returncode == 0


def environment(folder, installed):
    """Of what runs beside them: which there are, and where their checkouts are."""
    return {INSTALLED: ",".join(installed), FOLDER: str(folder)}


def _wait(places, name):
    deployment, namespace = manifests.DEPLOYMENTS[name], f"--namespace={manifests.NAMESPACES[name]}"
    done = kubectl(
        places, namespace, "rollout", "status", f"deployment/{deployment}",
        f"--timeout={_READY_S}s",
    )  # fmt: skip
    if done.returncode != 0:
        log = kubectl(places, namespace, "logs", f"deployment/{deployment}", "--tail=20")
        said = (log.stdout or log.stderr).strip()
        raise ClusterError(f"{name} is not ready: {done.stderr.strip()}\n{said}")
