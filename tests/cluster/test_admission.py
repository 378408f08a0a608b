"""What the sandbox namespace refuses, whoever asks: the trainer may create sandboxes alone."""

import copy

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.unit.cluster.objects.samples import every_manifest
from tests.unit.k8s.allowed_verbs import SANDBOXES

SANDBOX = every_manifest()["sandbox-pod"]


def _own(pod):
    return pod["spec"]["containers"][0]["securityContext"]


BAD = {
    "privileged": lambda pod: _own(pod).update(privileged=True, allowPrivilegeEscalation=True),
    "may escalate": lambda pod: _own(pod).update(allowPrivilegeEscalation=True),
    "keeps capabilities": lambda pod: _own(pod).pop("capabilities"),
    "adds a capability": lambda pod: _own(pod)["capabilities"].update(add=["SYS_ADMIN"]),
    "root": lambda pod: pod["spec"]["securityContext"].update(runAsUser=0, runAsNonRoot=False),
    "unconfined": lambda pod: pod["spec"]["securityContext"].update(
        seccompProfile={"type": "Unconfined"}
    ),
    "unmasked proc": lambda pod: _own(pod).update(procMount="Unmasked"),
    "the node's network": lambda pod: pod["spec"].update(hostNetwork=True),
    "the node's processes": lambda pod: pod["spec"].update(hostPID=True),
    "a port of the node": lambda pod: pod["spec"]["containers"][0]["ports"][0].update(hostPort=80),
    "a folder of the node": lambda pod: pod["spec"]["volumes"].append(
        {"name": "node", "hostPath": {"path": "/"}}
    ),
    "a secret": lambda pod: pod["spec"]["volumes"].append(
        {"name": "secret", "secret": {"secretName": "espalier-s3"}}
    ),
    "no runtime class": lambda pod: pod["spec"].pop("runtimeClassName"),
    "another account": lambda pod: pod["spec"].update(serviceAccountName="default"),
    "a token": lambda pod: pod["spec"].update(automountServiceAccountToken=True),
    "another priority": lambda pod: pod["spec"].update(priorityClassName="espalier-serving"),
    "no end": lambda pod: pod["spec"].pop("activeDeadlineSeconds"),
    "no owner": lambda pod: pod["metadata"].pop("ownerReferences"),
    "more memory than a sandbox may have": lambda pod: pod["spec"]["containers"][0]["resources"][
        "limits"
    ].update(memory="64Gi"),
}


@pytest.fixture(scope="module")
def trainer(as_account):
    return client.CoreV1Api(as_account("espalier-trainer"))


def test_the_trainer_may_create_a_sandbox(trainer):
    made = trainer.create_namespaced_pod(SANDBOXES, SANDBOX, dry_run="All")
    assert made.spec.runtime_class_name == "gvisor"


@pytest.mark.parametrize("fault", BAD)
def test_a_pod_that_is_no_sandbox_is_refused(trainer, fault):
    pod = copy.deepcopy(SANDBOX)
    BAD[fault](pod)
    with pytest.raises(ApiException) as refused:
        trainer.create_namespaced_pod(SANDBOXES, pod, dry_run="All")
    assert refused.value.status in (403, 422), refused.value.body


def test_a_sandbox_cannot_be_turned_into_something_else_afterwards(trainer):
    with pytest.raises(ApiException) as refused:
        trainer.patch_namespaced_pod("r17-s0", SANDBOXES, {"spec": {"hostNetwork": True}})
    assert refused.value.status == 403
