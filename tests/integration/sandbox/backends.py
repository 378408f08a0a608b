"""The backends that the suite runs over, and why one of them cannot run here.

Pods need a cluster, an image in it, and a way from here to the pods' addresses:

    KUBECONFIG                      of the cluster that k8s/ was installed on
    ESPALIER_CLUSTER_SANDBOX_IMAGE  as the cluster's nodes name it
    ESPALIER_SANDBOX_NAMESPACE      default espalier-sandboxes
    ESPALIER_RUNTIME_CLASSES        those to test, separated by commas; default gvisor
    ESPALIER_TEST_NEIGHBOURS        has "agent-sandbox" where its controller runs there
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from espalier.config import SandboxPodsConfig
from espalier.sandbox import Backend, Limits, SandboxUnavailable
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.pod import SandboxPodSettings
from espalier.sandbox.podman import PodmanBackend
from tests.integration.sandbox.image import image_name, import_image

LIMITS = Limits(
    memory_bytes=256 * 2**20,
    cpu_s=4.0,
    processes=40,
    disk_bytes=80 * 2**20,
    output_bytes=64 * 1024,
    wall_s=15.0,
)
IMAGE = os.environ.get("ESPALIER_SANDBOX_IMAGE") or image_name()
_RUNTIMES = (None, "crun", "runc")
"""Debian's crun refuses machines whose cgroups are half of version 2; its runc does not."""


class AbsentError(Exception):
    """A backend that this machine does not have; the text is the reason to skip."""


def local(limits: Limits = LIMITS) -> list[Backend]:
    return [LocalBackend(limits=limits)]


def podman(limits: Limits = LIMITS) -> list[Backend]:
    if "ESPALIER_TEST_PODMAN" not in os.environ:
        raise AbsentError("set ESPALIER_TEST_PODMAN=1 to test it, with nothing else running")
    if shutil.which("podman") is None:
        raise AbsentError("podman is not installed")
    if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode != 0:
        if shutil.which("dpkg-query") is None:
            raise AbsentError(f"no image {IMAGE}, and no Debian here to build it from")
        import_image(IMAGE)
    return [
        PodmanBackend(image=IMAGE, limits=limits, preimport=(), runtime=runtime)
        for runtime in _RUNTIMES
    ]


def pods(
    runtime_class: str, limits: Limits = LIMITS, *, agent_sandbox: str = "never"
) -> list[Backend]:
    kubeconfig, image = (
        os.environ.get(name) for name in ("KUBECONFIG", "ESPALIER_CLUSTER_SANDBOX_IMAGE")
    )
    if not kubeconfig or not image:
        raise AbsentError("set KUBECONFIG and ESPALIER_CLUSTER_SANDBOX_IMAGE to test it")
    if runtime_class not in os.environ.get("ESPALIER_RUNTIME_CLASSES", "gvisor").split(","):
        raise AbsentError(f"set ESPALIER_RUNTIME_CLASSES={runtime_class} to test it")
    config = SandboxPodsConfig.model_validate(
        {
            "runtime_class": runtime_class,
            "agent_sandbox": agent_sandbox,
            "resources": {"disk_limit": str(limits.disk_bytes)},
        }
    )
    return [
        KubernetesBackend(
            settings=SandboxPodSettings(
                image=image,
                namespace=os.environ.get("ESPALIER_SANDBOX_NAMESPACE", "espalier-sandboxes"),
                pods=config,
            ),
            run_id=f"test-{uuid.uuid4().hex[:8]}",
            limits=limits,
            preimport=(),
            kubeconfig=Path(kubeconfig),
        )
    ]


def claims(runtime_class: str, limits: Limits = LIMITS) -> list[Backend]:
    if "agent-sandbox" not in os.environ.get("ESPALIER_TEST_NEIGHBOURS", "").split(","):
        raise AbsentError("agent-sandbox is not installed: `make test-neighbours SOURCES=DIR`")
    return pods(runtime_class, limits, agent_sandbox="always")


def _claims_on(runtime_class: str) -> Callable[..., list[Backend]]:
    def made(limits: Limits = LIMITS) -> list[Backend]:
        return claims(runtime_class, limits)

    return made


def _pods_on(runtime_class: str) -> Callable[..., list[Backend]]:
    def made(limits: Limits = LIMITS) -> list[Backend]:
        return pods(runtime_class, limits)

    return made


BACKENDS: dict[str, Callable[..., list[Backend]]] = {
    "local": local,
    "podman": podman,
    "pods on runc": _pods_on("runc"),
    "pods on gVisor": _pods_on("gvisor"),
    "agent-sandbox on runc": _claims_on("runc"),
    "agent-sandbox on gVisor": _claims_on("gvisor"),
}
"""Of each kind the settings to try; the first that gives a sandbox is taken."""
ON_THIS_MACHINE = ("local", "podman")
"""Those whose processes this machine's /proc shows."""


def is_on_gvisor(backend: Backend) -> bool:
    """Whether its sandboxes run on gVisor's kernel, of which the guarantees differ in part."""
    return (
        isinstance(backend, KubernetesBackend) and backend.settings.pods.runtime_class == "gvisor"
    )


async def first_that_works(candidates: list[Backend]) -> Backend:
    """The first of which a sandbox was had.

    Raises:
        SandboxUnavailable: none; why the last one was not.
    """
    reason = SandboxUnavailable("there is nothing to try")
    for candidate in candidates:
        try:
            await (await candidate.create()).close()
        except SandboxUnavailable as error:
            reason = error
            await candidate.close()
        else:
            return candidate
    raise reason
