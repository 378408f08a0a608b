"""The model against worked cases of the NetworkPolicy documentation (kubernetes.io)."""

import pytest

from tests.unit.k8s.network_model import Network, Outside, Pod, Port

WEB, API = Pod("web", "one", {"app": "web"}), Pod("api", "one", {"app": "api"}, {"http": 8080})
STRANGER = Pod("stranger", "two", {"app": "web"})
INTERNET = Outside("internet", "198.51.100.7")
NAMESPACES = {"one": {"team": "a"}, "two": {"team": "b"}}


def policy(namespace="one", **spec):
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def door(**rule):
    return policy(ingress=[rule])


def out(**rule):
    return policy(policyTypes=["Egress"], egress=[rule])


def labelled(selector="podSelector", **labels):
    return {selector: {"matchLabels": labels}}


SHUT = policy(policyTypes=["Ingress"])
FROM_WEB, TEAM_B = door(**{"from": [labelled(app="web")]}), labelled("namespaceSelector", team="b")
BATCH = labelled(app="batch")
BLOCK = {"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.8/30"]}}
TWO = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}}


@pytest.mark.parametrize(
    ("policies", "source", "destination", "passes"),
    [
        # without policies everybody reaches everybody
        ([], STRANGER, API, True),
        ([], INTERNET, API, True),
        # no ingress rule leaves egress open, and an empty one opens everything
        ([SHUT], WEB, API, False),
        ([SHUT], API, STRANGER, True),
        ([door()], INTERNET, API, True),
        # only pods that a policy of their namespace selects are closed
        ([policy(policyTypes=["Ingress"], **labelled(app="api"))], STRANGER, API, False),
        ([policy(policyTypes=["Ingress"], **labelled(app="api"))], STRANGER, WEB, True),
        ([policy("two", policyTypes=["Ingress", "Egress"])], WEB, API, True),
        # both ends have to allow a connection, and policies add up
        ([policy("two", policyTypes=["Egress"], egress=[{}]), SHUT], STRANGER, API, False),
        ([SHUT, FROM_WEB], WEB, API, True),
        # a pod selector alone means the same namespace; selectors of one peer are joined by and
        ([FROM_WEB], STRANGER, API, False),
        ([door(**{"from": [{**TEAM_B, **BATCH}]})], STRANGER, API, False),
        ([door(**{"from": [TEAM_B, BATCH]})], STRANGER, API, True),
        # the automatic name label of a namespace
        ([door(**{"from": [TWO]})], STRANGER, API, True),
        ([door(**{"from": [TWO]})], WEB, API, False),
        # an address block has exceptions, and is not trusted to mean pods
        ([out(to=[BLOCK])], API, INTERNET, True),
        ([out(to=[BLOCK])], API, Outside("there", "198.51.100.9"), False),
        ([out(to=[{"ipBlock": {"cidr": "0.0.0.0/0"}}])], WEB, API, False),
        # egress counts by default where it is written
        ([policy(egress=[{"to": [{"podSelector": {}}]}])], WEB, INTERNET, False),
        ([policy(ingress=[])], WEB, INTERNET, True),
    ],
)
def test_a_connection_passes_by_the_documented_rules(policies, source, destination, passes):
    assert Network(policies, NAMESPACES).connects(source, destination, Port(8080)) is passes


@pytest.mark.parametrize(
    ("ports", "passes"),
    [
        ([{"port": 8080}], True),
        ([{"port": 8000, "endPort": 8100}], True),
        ([{"port": "http"}], True),
        ([{"protocol": "UDP", "port": 8080}], False),
        ([{"protocol": "UDP"}, {"protocol": "TCP"}], True),
    ],
)
def test_ports_are_numbers_ranges_or_names(ports, passes):
    assert Network([door(ports=ports)], NAMESPACES).connects(WEB, API, Port(8080)) is passes


@pytest.mark.parametrize(
    ("operator", "values", "passes"),
    [
        ("In", ["web"], True),
        ("NotIn", ["web"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_selectors_have_expressions(operator, values, passes):
    expression = {"key": "app", "operator": operator, "values": values}
    peer = {"podSelector": {"matchExpressions": [expression]}}
    network = Network([door(**{"from": [peer]})], NAMESPACES)
    assert network.connects(WEB, API, Port(8080)) is passes
