"""The same sandboxes as objects of agent-sandbox, for clusters that have its controller.

Field names are those of extensions.agents.x-k8s.io/v1beta1 (kubernetes-sigs/agent-sandbox,
docs/api.md). A claim names the pool; the controller hands out a warm pod and starts another.
"""

from __future__ import annotations

from collections.abc import Mapping

from espalier.cluster.objects.names import K8sObject, Owner, object_labels, run_object_name
from espalier.cluster.objects.pods import USER
from espalier.sandbox.pod import SandboxPodSettings, sandbox_labels, sandbox_pod_spec

API_VERSION = "extensions.agents.x-k8s.io/v1beta1"
POOL_PART = "sandboxes"


def sandbox_template(
    settings: SandboxPodSettings, environment: Mapping[str, str], *, run_id: str, owner: Owner
) -> K8sObject:
    """The pod that every sandbox of the pool is a copy of, user and token's digest included.

    The network policies of `k8s/` hold for it. The controller's own policy, its default, would let
    sandboxes out to the internet.
    """
    metadata = {"labels": sandbox_labels(settings, run_id)}
    pod = sandbox_pod_spec(settings, environment, user=USER)
    return {
        **_identity("SandboxTemplate", settings, run_id, owner),
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
    """`replicas` started sandboxes that wait to be claimed."""
    return {
        **_identity("SandboxWarmPool", settings, run_id, owner),
        "spec": {
            "replicas": replicas,
            "sandboxTemplateRef": {"name": run_object_name(run_id, POOL_PART)},
            # of a changed template no pod may serve that was started before
            "updateStrategy": {"type": "Recreate"},
        },
    }


def sandbox_claim(
    settings: SandboxPodSettings, *, name: str, run_id: str, owner: Owner
) -> K8sObject:
    """A request for one sandbox; deleting it ends the sandbox that it was given.

    It sets no environment: that would make the controller start a cold pod.
    """
    claim = _identity("SandboxClaim", settings, run_id, owner)
    claim["metadata"]["name"] = name
    claim["spec"] = {
        "warmPoolRef": {"name": run_object_name(run_id, POOL_PART)},
        "ttlSecondsAfterCreated": settings.pods.ttl_s,
    }
    return claim


def _identity(kind: str, settings: SandboxPodSettings, run_id: str, owner: Owner) -> K8sObject:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": run_object_name(run_id, POOL_PART),
            "namespace": settings.namespace,
            "labels": object_labels("espalier-sandbox", "sandbox-pool", run_id, settings.labels),
            "ownerReferences": [owner.reference()],
        },
    }
