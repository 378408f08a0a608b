import re

from tests.unit.k8s.allowed_verbs import (
    ALLOWED_VERBS,
    KUBEFLOW_VERBS,
    PIPELINE,
    WITHOUT_RIGHTS,
)
from tests.unit.k8s.rendering import (
    GPU,
    K8S,
    LOCAL,
    LOCAL_ROLLOUT,
    every_overlay,
    named,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

OWN_ACCOUNTS = {folder: {"espalier-minio", "espalier-backup"} for folder in LOCAL}
OWN_ACCOUNTS |= {folder: {"espalier-rollout"} for folder in GPU}
OWN_ACCOUNTS[LOCAL_ROLLOUT].add("espalier-rollout")
SINGLE_USER = "overlays/kubeflow-single-user"
KUBEFLOW = "kubeflow"


def allowed(folder):
    """The table of rights of the accounts of an overlay in the pipeline's namespace."""
    return ALLOWED_VERBS | (KUBEFLOW_VERBS if folder == "overlays/kubeflow" else {})


def granted(objects, namespaces=(PIPELINE,)):
    """Account -> (namespace, group, resource) -> verbs, as the rendered bindings grant them.

    An account of another namespace than the pipeline's is written "namespace/account".
    """
    rights = {}
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        namespace = binding["metadata"]["namespace"]
        roles = [r for r in of_kind(objects, "Role") if r["metadata"]["namespace"] == namespace]
        role = named(roles, "Role", binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            assert subject["namespace"] in namespaces
            is_ours = subject["namespace"] == PIPELINE
            account = subject["name"] if is_ours else f"{subject['namespace']}/{subject['name']}"
            for key, verbs in _rights_of(role):
                rights.setdefault(account, {}).setdefault(key, set()).update(verbs)
    return rights


def _rights_of(role):
    for rule in role["rules"]:
        names = "".join(f" NAME:{name}" for name in rule.get("resourceNames", []))
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                key = (role["metadata"]["namespace"], group, f"{resource}{names}")
                yield key, rule["verbs"]


@needs_kubectl
@every_overlay
def test_the_manifests_grant_exactly_what_the_table_allows(folder):
    objects = rendered(folder)
    assert granted(objects) == verbs_of(allowed(folder))
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    roles = {(r["metadata"]["namespace"], r["metadata"]["name"]) for r in of_kind(objects, "Role")}
    assert roles == {
        (b["metadata"]["namespace"], b["roleRef"]["name"]) for b in of_kind(objects, "RoleBinding")
    }


def verbs_of(table):
    return {
        account: {key: set(verbs.split()) for key, verbs in rights.items()}
        for account, rights in table.items()
    }


@needs_kubectl
def test_with_one_user_kubeflows_namespace_has_the_accounts():
    expected = dict(ALLOWED_VERBS)
    for account, rights in KUBEFLOW_VERBS.items():
        expected[f"{KUBEFLOW}/{account}"] = {
            (KUBEFLOW if where == PIPELINE else where, *key): verbs
            for (where, *key), verbs in rights.items()
        }
    # the pods of a RayJob or TrainJob are in the namespace of the step that launched it
    expected[f"{KUBEFLOW}/espalier-trainer"] = ALLOWED_VERBS["espalier-trainer"]
    objects = rendered(SINGLE_USER)
    assert granted(objects, {PIPELINE, KUBEFLOW}) == verbs_of(expected)
    accounts = {
        account["metadata"]["name"]: account["automountServiceAccountToken"]
        for account in of_kind(objects, "ServiceAccount")
        if account["metadata"]["namespace"] == KUBEFLOW
    }
    without = dict.fromkeys(("espalier-training-gc", "espalier-step", "espalier-trainer"), False)
    assert accounts == without | {"espalier-kubeflow": True}


@needs_kubectl
@every_overlay
def test_every_account_is_in_the_table_and_few_hold_tokens(folder):
    accounts = {}
    for account in of_kind(rendered(folder), "ServiceAccount"):
        metadata = account["metadata"]
        accounts.setdefault(metadata["namespace"], set()).add(metadata["name"])
        # Kubeflow has no field by which a pod would mount the token itself
        is_kubeflows = metadata["name"] == "espalier-kubeflow"
        assert account["automountServiceAccountToken"] is is_kubeflows
    expected = {namespace: set(names) for namespace, names in WITHOUT_RIGHTS.items()}
    expected[PIPELINE] |= allowed(folder).keys() | OWN_ACCOUNTS.get(folder, set())
    assert accounts == expected
    for pod in pod_templates(rendered(folder)):
        has_rights = pod.spec["serviceAccountName"] in allowed(folder)
        assert pod.spec["automountServiceAccountToken"] is has_rights, pod.owner


def test_the_readme_says_what_accounts_may_do():
    """By its table of account, namespace, what, verbs."""
    cell = r"\s*(.*?)\s*"
    row = re.compile(rf"\|{cell}\|{cell}\|{cell}\|{cell}\|")
    lines = (K8S / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [match.groups() for line in lines if (match := row.fullmatch(line))]
    for account, rights in (ALLOWED_VERBS | KUBEFLOW_VERBS).items():
        assert {(where, what): verbs for name, where, what, verbs in rows if name == account} == {
            (namespace.removeprefix("espalier-"), resource.replace(" NAME:", " ")): (
                verbs.replace(" ", ", ")
            )
            for (namespace, _, resource), verbs in rights.items()
        }
