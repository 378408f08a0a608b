"""The pod of one sandbox, and agent-sandbox's objects for clusters that have its controller.

A sandbox pod has no rights, no token and no egress; it only answers the pod that created it. The
fields of agent-sandbox are those of extensions.agents.x-k8s.io/v1beta1 (extensions/api/v1beta1 of
kubernetes-sigs/agent-sandbox): for a claim, the controller hands out a warm pod and starts another.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from espalier.cluster.objects.names import (
    NAME_LABEL,
    K8sObject,
    Owner,
    checked_run_id,
    object_labels,
    run_object_name,
)
from espalier.cluster.objects.pods import (
    SANDBOX_PRIORITY,
    SCRATCH_MOUNT,
    USER,
    Volumes,
    environment_entries,
    resource_requirements,
    restricted_container,
    restricted_pod,
    toleration_entry,
)
from espalier.config import SandboxPodsConfig

CONTAINER = "sandbox"
PROGRAM = "espalier-sandbox"
"""Name label of every sandbox pod, by which network policies and the collector find them."""
SANDBOX_ACCOUNT = "espalier-sandbox"
"""A service account without rights, whose token is not mounted."""
SANDBOXD_PORT = 8080
"""The only port that the network policies open, for pods of the pipeline."""
HEALTH_PATH = "/healthz"
TTL_LABEL = "espalier.dev/ttl-seconds"
"""Label with the pod's time to live in seconds, from its creation by the API server's clock."""
WORKSPACE = "/workspace"
_TERMINATION_LOG = "/root/termination-log"
"""The kubelet mounts a world-writable file of the node at this path. Only root may enter /root, so
no sandbox can write to it there; in /dev, the default, it would be storage that no limit counts."""

_COMMAND = ("/opt/sandbox/bin/python", "-I", "-m", "sandboxd")
"""The same in every image of sandbox-images/; has to be pid 1."""
_FIRST_USER = 0x40000000
"""First user id of sandboxes, far above any account of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPodSettings:
    """Settings shared by all sandboxes of a pool."""

    image: str
    """An image with a digest, or with a tag that never moves."""
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
    """Return a pod with sandboxd, deleted with its owner or at its TTL.

    Args:
        settings: settings of the pool.
        environment: variables of sandboxd. Whoever may read pods can read them, perhaps also the
            agent's code: they may contain the digest of a token, but no secret.
        name: name of the pod.
        run_id: the run that samples.
        owner: the run's lease (`run_lease`), in the same namespace: Kubernetes takes an owner in
            another namespace for deleted and would delete the pod at once.

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
    """Return a user id derived from the sandbox's name.

    runc shares the node's kernel, so sandboxes of one user would share its process limit: one that
    forks up to the limit would keep its neighbours from forking.
    """
    return _FIRST_USER + zlib.crc32(name.encode()) % _FIRST_USER


def sandbox_labels(settings: SandboxPodSettings, run_id: str) -> dict[str, str]:
    """Return the labels by which network policies and the collector select sandboxes."""
    labels = object_labels(PROGRAM, "sandbox", checked_run_id(run_id), settings.labels)
    return labels | {TTL_LABEL: str(settings.pods.ttl_s)}


def sandbox_pod_spec(
    settings: SandboxPodSettings, environment: Mapping[str, str], *, user: int
) -> K8sObject:
    """Return the pod's spec, which does not depend on the run."""
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
        # no DNS: a lookup fails at once instead of after five seconds
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": restricted_pod(user),
        "containers": [_container(settings, environment, volumes.mounts)],
        "volumes": volumes.volumes,
    }
    return spec | _placement(settings.pods)


def _placement(pods: SandboxPodsConfig) -> K8sObject:
    """Return where the pods run and how they spread, apart from the RuntimeClass's own rules."""
    placement: K8sObject = {}
    if pods.node_selector:
        placement["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        placement["tolerations"] = [toleration_entry(one) for one in pods.tolerations]
    if pods.topology_spread:
        placement["topologySpreadConstraints"] = [
            {
                "maxSkew": spread.max_skew,
                "topologyKey": spread.topology_key,
                "whenUnsatisfiable": spread.when_unsatisfiable,
                "labelSelector": {"matchLabels": {NAME_LABEL: PROGRAM}},
            }
            for spread in pods.topology_spread
        ]
    if pods.image_pull_secrets:
        placement["imagePullSecrets"] = [{"name": name} for name in pods.image_pull_secrets]
    return placement


def _container(
    settings: SandboxPodSettings, environment: Mapping[str, str], mounts: list[K8sObject]
) -> K8sObject:
    health = {"path": HEALTH_PATH, "port": CONTAINER}
    pod_variables = {
        "SANDBOXD_LISTEN": f"0.0.0.0:{SANDBOXD_PORT}",
        "SANDBOXD_SOCKETS": "internet" if settings.pods.internet_sockets else "local",
    }
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(_COMMAND),
        "workingDir": WORKSPACE,
        "env": environment_entries({**environment, **pod_variables}),
        "ports": [{"name": CONTAINER, "containerPort": SANDBOXD_PORT, "protocol": "TCP"}],
        "resources": resource_requirements(settings.pods.resources),
        "securityContext": restricted_container(),
        # every second until it is up, then rarely: a node holds a hundred sandboxes
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": health, "periodSeconds": 20, "timeoutSeconds": 5},
        "volumeMounts": mounts,
        "terminationMessagePath": _TERMINATION_LOG,
    }


def _volumes(pods: SandboxPodsConfig) -> Volumes:
    """Return the pod's only writable folders."""
    volumes = Volumes()
    for name, path in (("tmp", SCRATCH_MOUNT), ("workspace", WORKSPACE)):
        if pods.scratch == "memory":
            volumes.memory(name, path, size=pods.resources.disk_limit)
        else:
            volumes.scratch(name, path, size=pods.resources.disk_limit)
    return volumes


AGENT_SANDBOX_API = "extensions.agents.x-k8s.io/v1beta1"
POOL_PART = "sandboxes"


def sandbox_template(
    settings: SandboxPodSettings, environment: Mapping[str, str], *, run_id: str, owner: Owner
) -> K8sObject:
    """Return the template of the pool's pods, which share one user and one token digest.

    The network policies of `k8s/` apply: the controller's default policy ("Managed") would allow
    egress to the internet.
    """
    metadata = {"labels": sandbox_labels(settings, run_id)}
    pod = sandbox_pod_spec(settings, environment, user=USER)
    return {
        **_agent_sandbox_object("SandboxTemplate", settings, run_id, owner),
        "spec": {
            "podTemplate": {"metadata": metadata, "spec": pod},
            "networkPolicyManagement": "Unmanaged",
            "envVarsInjectionPolicy": "Disallowed",
            "volumeClaimTemplatesPolicy": "Disallowed",
            "service": False,
        },
    }


def sandbox_warm_pool(
    settings: SandboxPodSettings, *, run_id: str, owner: Owner, replicas: int
) -> K8sObject:
    """Return a pool of `replicas` running sandboxes, to be claimed."""
    return {
        **_agent_sandbox_object("SandboxWarmPool", settings, run_id, owner),
        "spec": {
            "replicas": replicas,
            "sandboxTemplateRef": {"name": run_object_name(run_id, POOL_PART)},
            # pods of an older template must not be handed out
            "updateStrategy": {"type": "Recreate"},
        },
    }


def sandbox_claim(
    settings: SandboxPodSettings, *, name: str, run_id: str, owner: Owner, now: datetime
) -> K8sObject:
    """Return a claim for one sandbox; it ends when deleted, or at its time to live.

    The claim sets no environment, because the controller would then start a cold pod.

    Args:
        settings: settings of the pool.
        name: name of the claim.
        run_id: the run that samples.
        owner: the run's lease.
        now: the time in UTC from which the time to live counts.
    """
    claim = _agent_sandbox_object("SandboxClaim", settings, run_id, owner)
    claim["metadata"]["name"] = name
    ends = now.astimezone(UTC) + timedelta(seconds=settings.pods.ttl_s)
    claim["spec"] = {
        "warmPoolRef": {"name": run_object_name(run_id, POOL_PART)},
        "lifecycle": {
            "shutdownTime": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "shutdownPolicy": "Delete",
        },
    }
    return claim


def _agent_sandbox_object(
    kind: str, settings: SandboxPodSettings, run_id: str, owner: Owner
) -> K8sObject:
    return {
        "apiVersion": AGENT_SANDBOX_API,
        "kind": kind,
        "metadata": {
            "name": run_object_name(run_id, POOL_PART),
            "namespace": settings.namespace,
            "labels": object_labels(PROGRAM, "sandbox-pool", run_id, settings.labels),
            "ownerReferences": [owner.reference()],
        },
    }
