"""Up and down: from nothing to a node that is ready, and back to nothing."""

import contextlib
import os
import shutil
import time

from tests.cluster import (
    building,
    certificates,
    configuration,
    images,
    network,
    objects,
    parts,
    prerequisites,
    processes,
    sandbox_images,
    traces,
)
from tests.cluster.places import MARK, ClusterError


def up(places, say):
    """Build what is missing, and start everything; what was started of a failed try is ended.

    Args:
        places: where.
        say: told what took how many seconds.
    """
    prerequisites.check()
    if is_up(places):
        raise ClusterError("a cluster runs already; `python -m tests.cluster down` ends it")
    clear(places)
    build(places, say)
    try:
        _start(places, say)
    except BaseException:
        _keep_logs(places)
        down(places)
        raise


def build(places, say):
    """Make what every cluster starts from, and keep it: programs and images."""
    for module, seconds in building.build(places.programs).items():
        say(f"built {module}", seconds)
    with _timed(say, "built images"):
        sandbox_images.build(places)


def down(places):
    """End everything, and remove what it left.

    Raises:
        ClusterError: as `clear`.
    """
    prerequisites.check_machine()
    for name in reversed(parts.IN_ORDER):
        # the API server waits for its clients' watches to end, who are gone already
        processes.stop(places, name, grace_s=2.0 if name == "apiserver" else 5.0)
    clear(places)


def clear(places):
    """Remove what an earlier cluster left, however it ended.

    Raises:
        ClusterError: something is left all the same.
    """
    processes.end_everything()
    processes.unmount(places.state)
    processes.remove_cgroups()
    network.remove()
    traces.remove(places.state)
    left = left_over(places)
    shutil.rmtree(places.state, ignore_errors=True)
    if left:
        raise ClusterError(f"left over: {', '.join(left)}")


def left_over(places):
    """What a cluster left on the machine, in words; empty is as it should be."""
    return processes.left_over(places.state) + [str(path) for path in traces.found(places.state)]


def is_up(places):
    return network.exists() and bool(processes.running(places))


def environment(places):
    """Of what `run` starts: the cluster, that it is the tests' own, and what is installed there."""
    return {
        **os.environ,
        **objects.s3_environment(places),
        "PATH": f"{places.programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(places.kubeconfig),
        **parts.kubectl_environment(places),
        MARK: str(places.state),
        "ESPALIER_TEST_S3": "s3://espalier/tests",
        "ESPALIER_CLUSTER_SANDBOX_IMAGE": sandbox_images.PYTHON,
        "ESPALIER_RUNTIME_CLASSES": "gvisor,runc",
    }


def _start(places, say):
    for folder in (places.state, places.logs):
        folder.mkdir(parents=True)
    traces.note(places.state)
    network.make()
    processes.make_cgroups()
    certificates.issue(places.keys)
    with _timed(say, "API server"):
        parts.start_etcd(places)
        parts.start_api_server(places)
    parts.start_controllers(places)
    with _timed(say, "containerd and images"):
        _start_containerd(places)
    with _timed(say, "node ready"):
        parts.start_node(places)
    with _timed(say, "objects"):
        objects.install(places)
    with _timed(say, "S3 server"):
        objects.wake(places, "espalier-minio", timeout_s=120)


def _start_containerd(places):
    spec = parts.ctr(places, "oci", "spec")
    if spec.returncode != 0:
        raise ClusterError(f"ctr oci spec: {spec.stderr.strip()}")
    configuration.write(places, spec.stdout)
    parts.start_containerd(places)
    for name, content in images.archives(places).items():
        path = places.state / name
        path.write_bytes(content)
        import_image(places, path)
        path.unlink()
    import_image(places, sandbox_images.archive(places))


def import_image(places, archive):
    """Hand an image archive to the node."""
    done = parts.ctr(places, "images", "import", str(archive))
    if done.returncode != 0:
        raise ClusterError(f"ctr images import {archive}: {done.stderr.strip()}")


def _keep_logs(places):
    kept = places.cache / "logs-of-failed"
    shutil.rmtree(kept, ignore_errors=True)
    if places.logs.exists():
        shutil.copytree(places.logs, kept)


@contextlib.contextmanager
def _timed(say, what):
    started = time.monotonic()
    yield
    say(what, time.monotonic() - started)
