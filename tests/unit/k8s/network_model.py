"""What NetworkPolicy objects allow, by the rules of the API's documentation (networking.k8s.io/v1).

A connection passes when the source's egress and the destination's ingress both allow it. A pod that
no policy of a direction selects is open in that direction; one that is selected is open only to
what some rule of those policies lists. Policies add up; none takes away.

An ipBlock is matched against addresses outside the cluster alone: whether it sees pods is left to
the network plugin, so nothing may rest on it. Traffic of a node to its own pods (probes) always
passes and is not modelled.
"""

from ipaddress import ip_address, ip_network
from typing import NamedTuple


class Pod(NamedTuple):
    name: str
    namespace: str
    labels: dict
    ports: dict = {}  # noqa: RUF012 (nobody changes it)
    """Names of its ports -> numbers."""


class Outside(NamedTuple):
    """A host that is no pod: a node, the API server, a metadata service, the internet."""

    name: str
    address: str


class Port(NamedTuple):
    number: int
    protocol: str = "TCP"


class Network:
    """Policies of a cluster, and the labels of its namespaces."""

    def __init__(self, policies, namespaces):
        self._policies = policies
        self._namespaces = {
            name: {"kubernetes.io/metadata.name": name, **labels}
            for name, labels in namespaces.items()
        }

    def connects(self, source, destination, port):
        """Whether `source` may open a connection to `port` of `destination`."""
        return self._passes(source, destination, port, "Egress") and self.admits(
            destination, source, port
        )

    def admits(self, destination, source, port):
        """Whether `destination` would let `source` in, whatever the source may do by its own."""
        return self._passes(destination, source, port, "Ingress")

    def _passes(self, held, peer, port, direction):
        """Whether the policies that hold `held` let it talk to `peer` in that direction."""
        if isinstance(held, Outside):
            return True
        rules = self.union(held, direction)
        listener = held if direction == "Ingress" else peer
        peers_key = "from" if direction == "Ingress" else "to"
        return rules is None or any(
            self._lists(rule.get(peers_key), peer, held) and _opens(rule, port, listener)
            for rule in rules
        )

    def union(self, pod, direction):
        """The rules of all policies that hold a pod; None if none does, and everything passes."""
        holding = [
            policy["spec"]
            for policy in self._policies
            if policy["metadata"]["namespace"] == pod.namespace
            and direction in _directions(policy["spec"])
            and selects(policy["spec"].get("podSelector", {}), pod.labels)
        ]
        if not holding:
            return None
        return [rule for spec in holding for rule in spec.get(direction.lower(), [])]

    def _lists(self, peers, peer, held):
        """Whether a rule's peers include `peer`; a rule without any includes everybody."""
        return not peers or any(self._matches(item, peer, held) for item in peers)

    def _matches(self, item, peer, held):
        if block := item.get("ipBlock"):
            return isinstance(peer, Outside) and _inside(block, peer.address)
        if isinstance(peer, Outside):
            return False
        if "namespaceSelector" in item:
            labels = self._namespaces[peer.namespace]
            if not selects(item["namespaceSelector"], labels):
                return False
        elif peer.namespace != held.namespace:
            return False
        return selects(item.get("podSelector", {}), peer.labels)


def selects(selector, labels):
    """Whether a label selector matches; the empty one matches everything."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _holds(expression, labels):
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(expression)


def _directions(spec):
    """`policyTypes`, or what the API server makes of its absence."""
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]


def _inside(block, address):
    host = ip_address(address)
    return host in ip_network(block["cidr"]) and not any(
        host in ip_network(excluded) for excluded in block.get("except", [])
    )


def _opens(rule, port, listener):
    """Whether a rule's ports include `port`; a rule without any includes all."""
    return not rule.get("ports") or any(_is_port(item, port, listener) for item in rule["ports"])


def _is_port(item, port, listener):
    if item.get("protocol", "TCP") != port.protocol:
        return False
    number = item.get("port")
    if number is None:
        return True
    if isinstance(number, str):
        return getattr(listener, "ports", {}).get(number) == port.number
    return number <= port.number <= item.get("endPort", number)
