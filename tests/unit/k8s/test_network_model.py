"""The model against worked cases of the NetworkPolicy documentation (kubernetes.io)."""

import pytest

from tests.unit.k8s.network_model import Network, Outside, Pod, Port

WEB, API = Pod("web", "one", {"app": "web"}), Pod("api", "one", {"app": "api"}, {"http": 8080})
STRANGER = Pod("stranger", "two", {"app": "web"})
INTERNET = Outside("internet", "198.51.100.7")
HTTP = Port(8080)
NAMESPACES = {"one": {"team": "a"}, "two": {"team": "b"}}


def policy(namespace="one", **spec):
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def allows(policies, source, destination, port=HTTP):
    return Network(policies, NAMESPACES).connects(source, destination, port)


def test_without_policies_everybody_reaches_everybody():
    assert allows([], STRANGER, API)
    assert allows([], API, INTERNET)
    assert allows([], INTERNET, API)


def test_an_empty_ingress_rule_leaves_egress_open():
    closed = [policy(policyTypes=["Ingress"])]
    assert not allows(closed, WEB, API)
    assert not allows(closed, INTERNET, API)
    assert allows(closed, API, STRANGER)


def test_an_empty_rule_opens_everything():
    assert allows([policy(policyTypes=["Ingress"], ingress=[{}])], INTERNET, API)


def test_only_pods_that_the_policy_selects_are_closed():
    closed = [policy(podSelector={"matchLabels": {"app": "api"}}, policyTypes=["Ingress"])]
    assert not allows(closed, STRANGER, API)
    assert allows(closed, STRANGER, WEB)


def test_a_policy_of_another_namespace_does_not_count():
    assert allows([policy("two", policyTypes=["Ingress", "Egress"])], WEB, API)


def test_both_ends_have_to_allow_a_connection():
    out = policy("two", policyTypes=["Egress"], egress=[{}])
    shut = policy(policyTypes=["Ingress"])
    assert allows([out], STRANGER, API)
    assert not allows([out, shut], STRANGER, API)


def test_policies_add_up():
    shut = policy(policyTypes=["Ingress"])
    door = policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}])
    assert allows([shut, door], WEB, API)


def test_a_pod_selector_alone_means_the_same_namespace():
    door = [policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}])]
    assert allows(door, WEB, API)
    assert not allows(door, STRANGER, API)


def test_selectors_of_one_peer_are_joined_by_and():
    team = {"namespaceSelector": {"matchLabels": {"team": "b"}}}
    app = {"podSelector": {"matchLabels": {"app": "batch"}}}
    assert not allows([policy(ingress=[{"from": [{**team, **app}]}])], STRANGER, API)
    assert allows([policy(ingress=[{"from": [team, app]}])], STRANGER, API)


def test_a_namespace_is_found_by_its_automatic_name_label():
    two = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}}
    assert allows([policy(ingress=[{"from": [two]}])], STRANGER, API)
    assert not allows([policy(ingress=[{"from": [two]}])], WEB, API)


@pytest.mark.parametrize(("address", "passes"), [("198.51.100.7", True), ("198.51.100.9", False)])
def test_an_address_block_has_exceptions(address, passes):
    block = {"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.8/30"]}}
    out = [policy(policyTypes=["Egress"], egress=[{"to": [block]}])]
    assert allows(out, API, Outside("there", address)) is passes


def test_an_address_block_is_not_trusted_to_mean_pods():
    everywhere = {"ipBlock": {"cidr": "0.0.0.0/0"}}
    out = [policy(policyTypes=["Egress"], egress=[{"to": [everywhere]}])]
    assert not allows(out, WEB, API)


@pytest.mark.parametrize(
    ("ports", "passes"),
    [
        ([{"port": 8080}], True),
        ([{"port": 8081}], False),
        ([{"port": 8000, "endPort": 8100}], True),
        ([{"port": "http"}], True),
        ([{"port": "grpc"}], False),
        ([{"protocol": "UDP", "port": 8080}], False),
        ([{"protocol": "UDP"}, {"protocol": "TCP"}], True),
        ([], True),
    ],
)
def test_ports_are_numbers_ranges_or_names(ports, passes):
    assert allows([policy(ingress=[{"ports": ports}])], WEB, API) is passes


@pytest.mark.parametrize(
    ("operator", "values", "passes"),
    [
        ("In", ["web", "cli"], True),
        ("NotIn", ["web"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_selectors_have_expressions(operator, values, passes):
    expression = {"key": "app", "operator": operator, **({"values": values} if values else {})}
    peer = {"podSelector": {"matchExpressions": [expression]}}
    assert allows([policy(ingress=[{"from": [peer]}])], WEB, API) is passes


def test_egress_counts_by_default_where_it_is_written():
    out = policy(egress=[{"to": [{"podSelector": {}}]}])
    assert not allows([out], WEB, INTERNET)
    assert not allows([policy(ingress=[])], WEB, API)
    assert allows([policy(ingress=[])], WEB, INTERNET)
