"""What the sandbox namespace refuses, whoever asks: the trainer may create sandboxes alone."""

import copy
from dataclasses import replace

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from espalier.config import SandboxPodsConfig
from espalier.sandbox.pod import sandbox_pod
from tests.unit.cluster.objects.samples import LEASE, every_manifest
from tests.unit.cluster.objects.samples import SANDBOXES as SANDBOX_SETTINGS
from tests.unit.k8s.allowed_verbs import SANDBOXES

SANDBOX = every_manifest()["sandbox-pod"]


def _own(pod):
    return pod["spec"]["containers"][0]["securityContext"]


def _image(pod, name):
    pod["spec"]["containers"][0]["image"] = name


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
    "a variable from a secret": lambda pod: pod["spec"]["containers"][0]["env"].append(
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "espalier-pull", "key": "x"}}}
    ),
    "all variables of a secret": lambda pod: pod["spec"]["containers"][0].update(
        envFrom=[{"secretRef": {"name": "espalier-pull"}}]
    ),
    "a secret in an init container": lambda pod: pod["spec"].update(
        initContainers=[
            {
                **copy.deepcopy(pod["spec"]["containers"][0]),
                "name": "first",
                "envFrom": [{"secretRef": {"name": "espalier-pull"}}],
                "startupProbe": None,
                "readinessProbe": None,
            }
        ]
    ),
    "a projected secret": lambda pod: pod["spec"]["volumes"].append(
        {"name": "secret", "projected": {"sources": [{"secret": {"name": "espalier-pull"}}]}}
    ),
    "a pull secret of another name": lambda pod: pod["spec"].update(
        imagePullSecrets=[{"name": "espalier-s3"}]
    ),
    "the latest image": lambda pod: _image(pod, "registry.example:5000/python:latest"),
    "an image without a tag": lambda pod: _image(pod, "registry.example:5000/python"),
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


@pytest.mark.parametrize(
    "image", ["registry.example:5000/python:3.11", "python@sha256:" + 64 * "7", "a/b:c_1.2-x"]
)
def test_an_image_by_digest_or_fixed_tag_is_taken(trainer, image):
    pod = copy.deepcopy(SANDBOX)
    _image(pod, image)
    assert trainer.create_namespaced_pod(SANDBOXES, pod, dry_run="All").spec.containers[0].image


def _secret(name, kind):
    key = ".dockerconfigjson" if kind.endswith("dockerconfigjson") else "key"
    return {"metadata": {"name": name}, "type": kind, "stringData": {key: '{"auths": {}}'}}


def test_operators_keep_pull_secrets_and_sandboxes_name_them(core, trainer):
    secret = _secret("espalier-pull-tests", "kubernetes.io/dockerconfigjson")
    core.create_namespaced_secret(SANDBOXES, secret)
    try:
        settings = replace(
            SANDBOX_SETTINGS, pods=SandboxPodsConfig(image_pull_secrets=("espalier-pull-tests",))
        )
        pod = sandbox_pod(settings, {}, name="r17-s1", run_id="r17", owner=LEASE)
        made = trainer.create_namespaced_pod(SANDBOXES, pod, dry_run="All")
        assert [one.name for one in made.spec.image_pull_secrets] == ["espalier-pull-tests"]
        with pytest.raises(ApiException) as refused:
            trainer.read_namespaced_secret("espalier-pull-tests", SANDBOXES)
        assert refused.value.status == 403
    finally:
        core.delete_namespaced_secret("espalier-pull-tests", SANDBOXES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("espalier-pull", "Opaque"), ("keys", "kubernetes.io/dockerconfigjson"), ("keys", "Opaque")],
)
def test_no_other_secret_is_kept_beside_sandboxes(core, name, kind):
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_secret(SANDBOXES, _secret(name, kind), dry_run="All")
    assert refused.value.status in (403, 422)
    assert "espalier-pull" in refused.value.body


def test_the_trainer_makes_no_pull_secret(trainer):
    secret = _secret("espalier-pull-mine", "kubernetes.io/dockerconfigjson")
    with pytest.raises(ApiException) as refused:
        trainer.create_namespaced_secret(SANDBOXES, secret, dry_run="All")
    assert refused.value.status == 403


def test_a_sandbox_cannot_be_turned_into_something_else_afterwards(trainer):
    with pytest.raises(ApiException) as refused:
        trainer.patch_namespaced_pod("r17-s0", SANDBOXES, {"spec": {"hostNetwork": True}})
    assert refused.value.status == 403
