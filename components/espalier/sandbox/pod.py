"""The pod that one sandbox is: it can do nothing but answer whoever made it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier.cluster.objects.names import K8sObject, Owner, checked_run_id, object_labels
from espalier.cluster.objects.pods import (
    SANDBOX_PRIORITY,
    environment_entries,
    resource_requirements,
    restricted_container,
    restricted_pod,
)
from espalier.cluster.objects.volumes import SCRATCH_MOUNT, Volumes
from espalier.config import SandboxPodsConfig

CONTAINER = "sandbox"
SANDBOX_ACCOUNT = "espalier-sandbox"
"""Has no rights, and its token is not mounted."""
SANDBOXD_PORT = 8080
"""The one port that the network policies let the pipeline reach."""
HEALTH_PATH = "/healthz"
TTL_LABEL = "espalier.dev/ttl-seconds"
"""Seconds that the pod may live, counted from its creation by the API server's clock."""
WORKSPACE = "/workspace"
_TERMINATION_LOG = "/root/termination-log"
"""The kubelet mounts a file of the node there that anybody may write. A sandbox is never root, and
the images' /root lets nobody else in; in /dev, the default, it would hold what no limit counts."""

_COMMAND = ("/opt/sandbox/bin/python", "-I", "-m", "sandboxd")
"""What every image of sandbox-images/ has; it has to be process 1."""
_FIRST_USER = 0x40000000
"""Of the users that sandboxes run as: far above any account of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPodSettings:
    """What all sandboxes of a pool have in common."""

    image: str
    """By digest, or by a tag that is never moved."""
    namespace: str
    pods: SandboxPodsConfig
    labels: Mapping[str, str] = field(default_factory=dict)


def sandbox_pod(
    settings: SandboxPodSettings,
    environment: Mapping[str, str],
    *,
    name: str,
    run_id: str,
    owner: Owner,
) -> K8sObject:
    """A pod with sandboxd in it, which goes with its owner, at its TTL, or under memory pressure.

    Args:
        settings: of the pool.
        environment: of sandboxd. Whoever may read pods reads it, the agent's code perhaps too: the
            digest of a token goes here, and no secret.
        name: of the pod; its pool makes it.
        run_id: of the run that samples.
        owner: the run's lease (`run_lease`), in the same namespace: an owner elsewhere would count
            as gone, and the pod would be collected at once.

    Raises:
        ManifestError: `run_id` cannot be a label.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": sandbox_labels(settings, run_id),
            "ownerReferences": [owner.reference()],
        },
        "spec": sandbox_pod_spec(settings, environment, user=own_user(name)),
    }


def own_user(name: str) -> int:
    """The numeric user of the sandbox of that name.

    Without a kernel of their own (RuntimeClass runc), sandboxes of one user share that user's count
    of processes: one that forks to its limit would keep its neighbours from forking at all.
    """
    return _FIRST_USER + zlib.crc32(name.encode()) % _FIRST_USER


def sandbox_labels(settings: SandboxPodSettings, run_id: str) -> dict[str, str]:
    """Labels of a sandbox, by which the network policies and the collector know it."""
    labels = object_labels("espalier-sandbox", "sandbox", checked_run_id(run_id), settings.labels)
    return labels | {TTL_LABEL: str(settings.pods.ttl_s)}


def sandbox_pod_spec(
    settings: SandboxPodSettings, environment: Mapping[str, str], *, user: int
) -> K8sObject:
    """Everything of the pod that does not depend on its run."""
    volumes = _volumes(settings.pods)
    spec: K8sObject = {
        "runtimeClassName": settings.pods.runtime_class,
        "serviceAccountName": SANDBOX_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "priorityClassName": SANDBOX_PRIORITY,
        "activeDeadlineSeconds": settings.pods.ttl_s,
        "terminationGracePeriodSeconds": 1,
        # no name leads anywhere, and asking for one fails at once instead of after five seconds
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": restricted_pod(user),
        "containers": [_container(settings, environment, volumes.mounts)],
        "volumes": volumes.volumes,
    }
    if settings.pods.node_selector:
        spec["nodeSelector"] = dict(settings.pods.node_selector)
    return spec


def _container(
    settings: SandboxPodSettings, environment: Mapping[str, str], mounts: list[K8sObject]
) -> K8sObject:
    health = {"path": HEALTH_PATH, "port": CONTAINER}
    of_pods = {
        "SANDBOXD_LISTEN": f"0.0.0.0:{SANDBOXD_PORT}",
        "SANDBOXD_SOCKETS": "internet" if settings.pods.internet_sockets else "local",
    }
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(_COMMAND),
        "workingDir": WORKSPACE,
        "env": environment_entries({**environment, **of_pods}),
        "ports": [{"name": CONTAINER, "containerPort": SANDBOXD_PORT, "protocol": "TCP"}],
        "resources": resource_requirements(settings.pods.resources),
        "securityContext": restricted_container(),
        # asked every second until it is up once, and seldom after that: a node holds a hundred
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": health, "periodSeconds": 20, "timeoutSeconds": 5},
        "volumeMounts": mounts,
        "terminationMessagePath": _TERMINATION_LOG,
    }


def _volumes(pods: SandboxPodsConfig) -> Volumes:
    """The only places that can be written."""
    volumes = Volumes()
    for name, path in (("tmp", SCRATCH_MOUNT), ("workspace", WORKSPACE)):
        if pods.scratch == "memory":
            volumes.memory(name, path, size=pods.resources.disk_limit)
        else:
            volumes.scratch(name, path, size=pods.resources.disk_limit)
    return volumes
