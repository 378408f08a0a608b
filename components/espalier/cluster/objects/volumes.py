"""Volumes of a pod, together with where its container mounts them."""

from __future__ import annotations

from espalier.cluster.objects.names import K8sObject
from espalier.config import KubernetesConfig, PodResources

S3_MOUNT = "/s3"
"""Where KFP's executor looks for the artifact s3://bucket/key: at /s3/bucket/key."""
CACHE_MOUNT = "/cache"
SCRATCH_MOUNT = "/tmp"


class Volumes:
    """Collects volumes and their mounts side by side."""

    def __init__(self) -> None:
        self.volumes: list[K8sObject] = []
        self.mounts: list[K8sObject] = []

    def scratch(self, name: str, path: str, *, size: str) -> Volumes:
        """An empty folder on the node's disk, gone with the pod."""
        return self._add({"name": name, "emptyDir": {"sizeLimit": size}}, path)

    def memory(self, name: str, path: str, *, size: str) -> Volumes:
        """An empty folder in memory, which counts towards the container's limit."""
        return self._add({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}, path)

    def claim(self, name: str, path: str, *, claim: str) -> Volumes:
        """A volume that outlives the pod."""
        return self._add({"name": name, "persistentVolumeClaim": {"claimName": claim}}, path)

    def _add(self, volume: K8sObject, path: str) -> Volumes:
        self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], "mountPath": path})
        return self


def run_volumes(settings: KubernetesConfig, resources: PodResources, *, gpus: int) -> Volumes:
    """/tmp, the run's artifacts, the cache, and beside a GPU a /dev/shm that NCCL fits into."""
    volumes = Volumes().scratch("tmp", SCRATCH_MOUNT, size=resources.disk_limit)
    if settings.workspace_claim is None:
        volumes.scratch("workspace", S3_MOUNT, size=resources.disk_limit)
    else:
        volumes.claim("workspace", S3_MOUNT, claim=settings.workspace_claim)
    if settings.cache_claim is not None:
        volumes.claim("cache", CACHE_MOUNT, claim=settings.cache_claim)
    if gpus:
        volumes.memory("shm", "/dev/shm", size=settings.gpus.shared_memory)
    return volumes
