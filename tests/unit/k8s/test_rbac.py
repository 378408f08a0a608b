import re

import pytest

from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, PIPELINE, WITHOUT_RIGHTS
from tests.unit.k8s.rendering import (
    K8S,
    every_overlay,
    named,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

OWN_ACCOUNTS = {"overlays/local": {"espalier-minio"}, "overlays/gpu": {"espalier-rollout"}}
OWN_ACCOUNTS["overlays/kueue"] = OWN_ACCOUNTS["overlays/gpu"]


def granted(objects):
    """Account -> (namespace, group, resource) -> verbs, as the rendered bindings grant them."""
    rights = {}
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        namespace = binding["metadata"]["namespace"]
        roles = [r for r in of_kind(objects, "Role") if r["metadata"]["namespace"] == namespace]
        role = named(roles, "Role", binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", PIPELINE)
            for key, verbs in _rights_of(role):
                rights.setdefault(subject["name"], {}).setdefault(key, set()).update(verbs)
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
    expected = {
        account: {key: set(verbs.split()) for key, verbs in rights.items()}
        for account, rights in ALLOWED_VERBS.items()
    }
    assert granted(rendered(folder)) == expected


@needs_kubectl
@every_overlay
def test_nothing_is_granted_in_the_whole_cluster(folder):
    assert of_kind(rendered(folder), "ClusterRole", "ClusterRoleBinding") == []


@needs_kubectl
@every_overlay
def test_no_role_is_written_that_nobody_holds(folder):
    objects = rendered(folder)
    roles = {(r["metadata"]["namespace"], r["metadata"]["name"]) for r in of_kind(objects, "Role")}
    held = {
        (b["metadata"]["namespace"], b["roleRef"]["name"]) for b in of_kind(objects, "RoleBinding")
    }
    assert roles == held


@needs_kubectl
@every_overlay
def test_every_account_is_in_the_table_of_rights(folder):
    accounts = {}
    for account in of_kind(rendered(folder), "ServiceAccount"):
        metadata = account["metadata"]
        accounts.setdefault(metadata["namespace"], set()).add(metadata["name"])
        assert account["automountServiceAccountToken"] is False
    expected = {namespace: set(names) for namespace, names in WITHOUT_RIGHTS.items()}
    expected[PIPELINE] |= ALLOWED_VERBS.keys() | OWN_ACCOUNTS.get(folder, set())
    assert accounts == expected


@needs_kubectl
@every_overlay
def test_only_pods_with_rights_hold_a_token(folder):
    for pod in pod_templates(rendered(folder)):
        has_rights = pod.spec["serviceAccountName"] in ALLOWED_VERBS
        assert pod.spec["automountServiceAccountToken"] is has_rights, pod.owner


def _rows():
    """The table of k8s/README.md: account, namespace, what, verbs."""
    cell = r"\s*(.*?)\s*"
    row = re.compile(rf"\|{cell}\|{cell}\|{cell}\|{cell}\|")
    lines = (K8S / "README.md").read_text(encoding="utf-8").splitlines()
    return [match.groups() for line in lines if (match := row.fullmatch(line))]


@pytest.mark.parametrize("account", ALLOWED_VERBS)
def test_the_readme_says_what_an_account_may_do(account):
    said = {(namespace, what): verbs for name, namespace, what, verbs in _rows() if name == account}
    expected = {}
    for (namespace, _, resource), verbs in ALLOWED_VERBS[account].items():
        what = resource.replace(" NAME:", " ")
        expected[namespace.removeprefix("espalier-"), what] = verbs.replace(" ", ", ")
    assert said == expected
