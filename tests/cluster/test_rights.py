"""What each account may do, by the real API server: the table, and nothing that is not in it."""

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, PIPELINE, SANDBOXES, WITHOUT_RIGHTS

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
ACCOUNTS = sorted(
    {(PIPELINE, account) for account in ALLOWED_VERBS}
    | {(namespace, account) for namespace, names in WITHOUT_RIGHTS.items() for account in names}
)
EVERYONES = {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""What any account may ask about itself (ClusterRole system:basic-user)."""
TEMPTING = [
    ("", "secrets"), ("", "configmaps"), ("", "pods/exec"), ("", "pods/attach"),
    ("", "pods/portforward"), ("", "pods/ephemeralcontainers"), ("", "serviceaccounts/token"),
    ("", "nodes"), ("", "nodes/proxy"), ("", "namespaces"), ("", "persistentvolumes"),
    ("", "events"), ("apps", "daemonsets"), ("batch", "cronjobs"),
    ("networking.k8s.io", "networkpolicies"), ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
]  # fmt: skip

every_account = pytest.mark.parametrize(
    ("namespace", "account"), ACCOUNTS, ids=[f"{n}-{a}" for n, a in ACCOUNTS]
)


def _table(account, namespace):
    """(group, resource) -> verbs of the account in a namespace."""
    rights = ALLOWED_VERBS.get(account, {})
    return {
        (group, resource): set(verbs.split())
        for (where, group, resource), verbs in rights.items()
        if where == namespace
    }


@every_account
@pytest.mark.parametrize("where", [PIPELINE, SANDBOXES, "kube-system", "default"])
def test_an_account_has_exactly_the_tables_rules(as_account, namespace, account, where):
    api = client.AuthorizationV1Api(as_account(account, namespace))
    asked = {"spec": {"namespace": where}}
    rules = api.create_self_subject_rules_review(asked).status.resource_rules
    granted = {}
    for rule in rules:
        names = "".join(f" NAME:{name}" for name in rule.resource_names or ())
        for group in rule.api_groups:
            for resource in set(rule.resources) - EVERYONES:
                granted.setdefault((group, f"{resource}{names}"), set()).update(rule.verbs)
    own = account if namespace == PIPELINE else None
    assert granted == _table(own, where)


@every_account
def test_a_right_that_is_not_in_the_table_is_denied(as_account, namespace, account):
    api = client.AuthorizationV1Api(as_account(account, namespace))
    own = account if namespace == PIPELINE else None
    wrong = []
    for where in (PIPELINE, SANDBOXES):
        table = _table(own, where)
        for group, resource in [*table, *TEMPTING]:
            kind, _, name = resource.partition(" NAME:")
            for verb in VERBS:
                expected = verb in table.get((group, resource), ())
                if _may(api, where, group, kind, verb, name) is not expected:
                    wrong.append((where, group, resource, verb))
    assert wrong == []


def _may(api, namespace, group, kind, verb, name):
    resource, _, sub = kind.partition("/")
    attributes = {
        "namespace": namespace, "group": group, "resource": resource, "subresource": sub,
        "verb": verb, "name": name,
    }  # fmt: skip
    asked = {"spec": {"resourceAttributes": attributes}}
    return api.create_self_subject_access_review(asked).status.allowed


CALLS = {
    "read the S3 keys": lambda core: core.read_namespaced_secret("espalier-s3", PIPELINE),
    "list every secret": lambda core: core.list_secret_for_all_namespaces(),
    "list nodes": lambda core: core.list_node(),
    "read a node through the API server": lambda core: core.connect_get_node_proxy_with_path(
        "node1", "pods"
    ),
    "run a program in MLflow's pod": lambda core: core.connect_get_namespaced_pod_exec(
        "espalier-mlflow", PIPELINE, command=["id"]
    ),
    "make a token of another account": lambda core: core.create_namespaced_service_account_token(
        "espalier-trainer", PIPELINE, {"spec": {"audiences": []}}
    ),
    "open the sandbox namespace to any pod": lambda core: core.patch_namespace(
        SANDBOXES,
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    ),
    "lift the quota": lambda core: core.delete_namespaced_resource_quota("sandboxes", SANDBOXES),
    "delete all sandboxes at once": lambda core: core.delete_collection_namespaced_pod(
        SANDBOXES, dry_run="All"
    ),
    "create a pod in kube-system": lambda core: core.create_namespaced_pod(
        "kube-system",
        {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}},
        dry_run="All",
    ),
}


@every_account
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_no_account_may_make_is_refused(as_account, namespace, account, call):
    core = client.CoreV1Api(as_account(account, namespace))
    with pytest.raises(ApiException) as refused:
        CALLS[call](core)
    assert refused.value.status == 403, refused.value.body


@every_account
def test_no_account_makes_itself_administrator(as_account, namespace, account):
    rights = client.RbacAuthorizationV1Api(as_account(account, namespace))
    binding = {
        "metadata": {"name": "mine"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    with pytest.raises(ApiException) as refused:
        rights.create_cluster_role_binding(binding, dry_run="All")
    assert refused.value.status == 403


def test_an_unprivileged_user_has_no_rights(administrator):
    """A call without credentials, where a user's cluster may let some paths be read."""
    settings = client.Configuration()
    settings.host = administrator.configuration.host
    settings.ssl_ca_cert = administrator.configuration.ssl_ca_cert
    with client.ApiClient(settings) as anonymous, pytest.raises(ApiException) as refused:
        client.CoreV1Api(anonymous).list_namespaced_pod(SANDBOXES)
    assert refused.value.status in (401, 403)


NEEDS_TOKEN = """
import asyncio
from espalier.config import SandboxPodsConfig
from espalier.sandbox import SandboxUnavailable
from espalier.sandbox.kubernetes import KubernetesBackend
from espalier.sandbox.pod import SandboxPodSettings
settings = SandboxPodSettings(image="python:1", namespace="espalier-sandboxes",
                              pods=SandboxPodsConfig())
try:
    asyncio.run(KubernetesBackend(settings=settings, run_id="r1").create())
except SandboxUnavailable as error:
    print(error)
"""


def test_a_pod_without_a_token_says_what_is_missing(run_pod):
    said, succeeded = run_pod("python", "-c", NEEDS_TOKEN)
    assert succeeded, said
    assert "no service-account token in this pod: /var/run/secrets/" in said
    assert "automountServiceAccountToken: true" in said


def test_a_pod_whose_account_may_not_says_so(run_pod):
    """With a token, of an account without rights: the API server's refusal, and who was refused."""
    said, succeeded = run_pod("python", "-c", NEEDS_TOKEN, token=True)
    assert succeeded, said
    assert "403" in said
    assert "espalier-step" in said
