"""k8s/kubeflow: what Kubeflow's controller retries, and what its pods get of the namespace."""

import os
import re

import pytest
import yaml

from espalier.cluster.objects.pods import ENDPOINT_KEYS, TRY_AGAIN_MARK
from tests.unit.k8s.kinds import faults
from tests.unit.k8s.rendering import K8S, named, needs_kubectl, of_kind, rendered

# the ConfigMap of Kubeflow Pipelines 2.17 (manifests/kustomize/third-party/argo/base)
SHIPPED = """\
spec:
  ttlStrategy:
    secondsAfterCompletion: 3600
    secondsAfterSuccess: 3600
    secondsAfterFailure: 3600
  templateDefaults:
    retryStrategy:
      limit: '2'
      retryPolicy: OnError
"""
SINGLE_USER = "overlays/kubeflow-single-user"
BY_THE_DEADLINE = "Pod was active on the node longer than the specified deadline"


@pytest.fixture
def defaults():
    patch = yaml.safe_load((K8S / "kubeflow/controller/workflow-defaults.yaml").read_text())
    return yaml.safe_load(patch["data"]["workflowDefaults"])


def is_retried(expression, exit_code, status, message):
    """The expression's value; of expr-lang it uses what Python has under other names."""
    words = re.sub(r"lastRetry\.message contains ('[^']*')", r"(\1 in message)", expression)
    for theirs, ours in (
        ("lastRetry.message", "message"), ("lastRetry.status", "status"),
        ("asInt(lastRetry.exitCode)", "int(exit_code)"),
        ("&&", "and"), ("||", "or"), ("!(", "not ("), ("\n", " "),
    ):  # fmt: skip
        words = words.replace(theirs, ours)
    variables = {"exit_code": exit_code, "status": status, "message": message, "int": int}
    return eval(words, {"__builtins__": {}}, variables)


# as Argo 4.0.8 says them (operator.go: inferFailedReason, buildRetryStrategyLocalScope); Argo's own
# evaluator gave the same answers
@pytest.mark.parametrize(
    ("exit_code", "status", "message", "expected"),
    [
        ("1", "Failed", "main: Error (exit code 1)", False),
        ("1", "Failed", "main: Error (exit code 1): refused; try again: later", False),
        ("1", "Failed", f"main: Error (exit code 1): {TRY_AGAIN_MARK}S3 is away", True),
        ("143", "Failed", "main: Error (exit code 143)", True),
        ("137", "Failed", "main: OOMKilled (exit code 137)", True),
        ("-1", "Failed", "Preempted in order to admit critical pod", True),
        ("-1", "Error", "pod deleted", True),
        ("0", "Failed", "pod failed: wait container did not complete successfully", True),
        ("143", "Failed", BY_THE_DEADLINE, False),
        # a group of steps of which one failed or was lost: all of them would run anew
        ("-1", "Failed", "", False),
        ("-1", "Error", "", False),
    ],
)
def test_what_the_cluster_did_is_retried(defaults, exit_code, status, message, expected):
    expression = defaults["spec"]["templateDefaults"]["retryStrategy"]["expression"]
    assert is_retried(expression, exit_code, status, message) is expected


def test_the_rest_is_what_kubeflow_ships(defaults):
    strategy = defaults["spec"]["templateDefaults"]["retryStrategy"]
    assert strategy.pop("expression")
    # OnFailure would not try a deleted pod again
    assert strategy.pop("retryPolicy") == "Always"
    shipped = yaml.safe_load(SHIPPED)
    assert shipped["spec"]["templateDefaults"]["retryStrategy"].pop("retryPolicy") == "OnError"
    assert defaults == shipped


@needs_kubectl
def test_the_component_patches_kubeflows_own_manifests(tmp_path, defaults):
    def manifest(kind, name, api="v1", **rest):
        metadata = {"name": name, "namespace": "kubeflow"}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}

    data = {"workflowDefaults": SHIPPED, "executor": "imagePullPolicy: IfNotPresent\n"}
    container = {"name": "workflow-controller", "env": [{"name": "TRANSIENT", "value": "x"}]}
    own = [
        manifest("ConfigMap", "workflow-controller-configmap", data=data),
        manifest(
            "Deployment", "workflow-controller", "apps/v1",
            spec={"template": {"spec": {"containers": [container]}}},
        ),
    ]  # fmt: skip
    (tmp_path / "controller.yaml").write_text(yaml.safe_dump_all(own))
    component = os.path.relpath(K8S / "kubeflow/controller", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["controller.yaml"], "components": [component]})
    )
    (patched,), (deployment,) = (
        of_kind(rendered(tmp_path), kind) for kind in ("ConfigMap", "Deployment")
    )
    assert yaml.safe_load(patched["data"]["workflowDefaults"]) == defaults
    assert patched["data"]["executor"] == data["executor"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables["TRANSIENT"] == "x"
    assert 2**20 < int(variables["MAX_WORKFLOW_SIZE"]) < 1.5 * 2**20  # etcd takes that much


@needs_kubectl
@pytest.mark.parametrize(
    ("folder", "namespace"), [("overlays/kubeflow", "espalier-pipeline"), (SINGLE_USER, "kubeflow")]
)
def test_objects_for_kubeflow_are_valid_and_where_it_runs(folder, namespace):
    objects = rendered(folder)
    wrong = {item["metadata"]["name"]: faults(item) for item in objects}
    assert not any(wrong.values()), wrong
    there = [item for item in objects if item["metadata"].get("namespace") == namespace]
    assert named(there, "ConfigMap", "espalier-endpoints")["data"].keys() >= set(ENDPOINT_KEYS)
    collector = named(there, "CronJob", "espalier-training-gc")
    (container,) = collector["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--namespace", "$(NAMESPACE)"]
    (variable,) = container["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
