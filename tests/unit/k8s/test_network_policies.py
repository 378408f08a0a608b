"""Who reaches whom, by the model: no local cluster here enforces network policies."""

import pytest
import yaml

from espalier.sandbox.pod import SANDBOXD_PORT
from tests.unit.cluster.objects.samples import LAPTOP_SIZED, NODES, every_manifest, job
from tests.unit.k8s.network_model import Network, Outside, Pod, Port, selects
from tests.unit.k8s.rendering import (
    FOLDERS,
    K8S,
    containers,
    every_overlay,
    named,
    needs_kubectl,
    of_kind,
    pod_templates,
    rendered,
)

PIPELINE, SANDBOXES = "espalier-pipeline", "espalier-sandboxes"

DNS = Pod("dns", "kube-system", {"k8s-app": "kube-dns"})
NEIGHBOUR = Pod("neighbour", "elsewhere", {"app": "anything"})
OPERATOR = Pod("kuberay", "ray-system", {"app.kubernetes.io/component": "kuberay-operator"})
FALSE_OPERATOR = Pod("false-kuberay", "elsewhere", OPERATOR.labels)
BESIDE_OPERATOR = Pod("beside-kuberay", "ray-system", {"app": "anything"})
CUSTOMER = Pod("customer", "customers", {})
# labels that Argo and Kubeflow 2.17 put on every pod of a run
OF_A_RUN = {"workflows.argoproj.io/workflow": "w1", "pipelines.kubeflow.org/v2_component": "true"}
DRIVER = Pod("driver", PIPELINE, OF_A_RUN)
KUBE = "app.kubernetes.io"
TRAINER_LABELS = {f"{KUBE}/name": "trainer", f"{KUBE}/component": "manager"}
TRAINER_MANAGER = Pod("trainer-manager", "kubeflow-system", TRAINER_LABELS)
BESIDE_TRAINER = Pod("beside-trainer", "kubeflow-system", {"app": "anything"})
KUBEFLOW_SERVER = Pod("kubeflow-server", "kubeflow", {"app": "ml-pipeline"})
MAY_REACH = ("espalier.dev/may-reach-mlflow", "espalier.dev/may-reach-sandboxes")
KUBEFLOW_STEP = Pod("kubeflow-step", "kubeflow", OF_A_RUN | dict.fromkeys(MAY_REACH, "true"))
ROGUE = Pod("rogue", SANDBOXES, {"app": "not-a-sandbox"})
IMPOSTOR = Pod("impostor", "elsewhere", {"espalier.dev/may-reach-sandboxes": "true"})
ADDRESSES = {
    "api-server": "203.0.113.1", "s3": "203.0.113.2", "node": "192.0.2.10",
    "metadata": "169.254.169.254", "internet": "198.51.100.7",
}  # fmt: skip
OUTSIDE = {name: Outside(name, address) for name, address in ADDRESSES.items()}
PLAIN = (PIPELINE, SANDBOXES, "kube-system", "elsewhere", "kubeflow", "kubeflow-system")
NAMESPACES = {name: {} for name in PLAIN} | {
    "ray-system": {"espalier.dev/may-reach-ray": "true"},
    "customers": {"espalier.dev/may-reach-serving": "true"},
}
KUBEFLOW_PORTS = (8080, 8333, 8887, 8888, 9000)
PORTS = (
    *(Port(n) for n in (22, 53, 80, 443, 5000, 6443, 8000, 8265, 10250, 10443, *KUBEFLOW_PORTS)),
    Port(53, "UDP"),
)


def _pod(name, template):
    ports = {
        p["name"]: p["containerPort"] for c in containers(template.spec) for p in c.get("ports", [])
    }
    return Pod(name, template.namespace, template.labels, ports)


def _generated():
    """Pods that a run makes; one stage of each kind is enough."""
    manifests = every_manifest()
    made = {
        "sandbox": manifests["sandbox-pod"],
        "other-sandbox": manifests["sandbox-template"],
        "step": job("ingest", LAPTOP_SIZED),
        "trainer": job("train", LAPTOP_SIZED),
        "training-launcher": job("train", NODES),
    }
    templates = {name: pod_templates([item])[0] for name, item in made.items()}
    ray = pod_templates([manifests["ray-job"]])
    templates |= zip(("ray-submitter", "ray-head", "ray-worker"), ray, strict=True)
    # as placement labels the step of Kubeflow that plays episodes
    episodes = templates["trainer"]
    templates["trainer-of-kubeflow"] = episodes._replace(labels=episodes.labels | OF_A_RUN)
    return {name: _pod(name, template) for name, template in templates.items()}


def _cluster(folder):
    objects = rendered(folder)
    network = Network(of_kind(objects, "NetworkPolicy"), NAMESPACES)
    installed = {
        template.owner.partition("/")[2].removeprefix("espalier-"): template
        for template in pod_templates(objects)
    }
    pods = {name: _pod(name, template) for name, template in installed.items()} | _generated()
    strangers = (
        DNS, NEIGHBOUR, OPERATOR, FALSE_OPERATOR, BESIDE_OPERATOR, CUSTOMER, ROGUE, IMPOSTOR,
        DRIVER, KUBEFLOW_SERVER, TRAINER_MANAGER, BESIDE_TRAINER,
    )  # fmt: skip
    return network, pods | {pod.name: pod for pod in strangers} | OUTSIDE


def _paths(folder, source):
    """Everything that `source` reaches: destination -> ports."""
    network, hosts = _cluster(folder)
    found = {
        name: [port for port in PORTS if network.connects(hosts[source], host, port)]
        for name, host in hosts.items()
        if name != source
    }
    return {
        name: "all" if len(ports) == len(PORTS) else _spelt(ports)
        for name, ports in found.items()
        if ports
    }


def _spelt(ports):
    return " ".join(sorted({str(port.number) for port in ports}, key=int))


def _reaching(folder, destination):
    """Everything that reaches `destination`: source -> ports."""
    _, hosts = _cluster(folder)
    found = {name: _paths(folder, name) for name in hosts if name != destination}
    return {name: paths[destination] for name, paths in found.items() if destination in paths}


def _admitted(folder, destination):
    """Pods that the destination's own policies let in, were their senders' policies gone."""
    network, hosts = _cluster(folder)
    found = {
        name: _spelt(p for p in PORTS if network.admits(hosts[destination], host, p))
        for name, host in hosts.items()
        if name != destination
    }
    return {name: ports for name, ports in found.items() if ports}


SITE = {"base": ("api-server", "s3"), "overlays/local": ("node", "minio")}
S3_PORT = {"base": "443", "overlays/local": "9000"}
OVER_BASE = pytest.mark.parametrize("folder", ["base", "overlays/local"])
NAMES = {"dns": "53"}
SERVING = {"serving": "8000"}
SANDBOXD = {"sandbox": "8080", "other-sandbox": "8080"}


def _expected(folder, **paths):
    """Names in `paths` are those of the base; an overlay puts its own addresses there."""
    api_server, s3 = SITE[folder]
    places = {"kubernetes": {api_server: "6443"}, "s3": {s3: S3_PORT[folder]}}
    places |= {"mlflow": {"mlflow": "5000"}, "serving": SERVING}
    places |= {"sandboxes": SANDBOXD, "names": NAMES}
    return {host: port for name in paths for host, port in places[name].items()}


@needs_kubectl
@every_overlay
def test_sandboxes_reach_nothing_and_nobody_reaches_what_is_none(folder):
    for source in ("sandbox", "other-sandbox", "rogue"):
        assert _paths(folder, source) == {}
    network, hosts = _cluster(folder)
    assert not any(network.connects(host, ROGUE, port) for host in hosts.values() for port in PORTS)


AGENT_SANDBOX = "agents.x-k8s.io/"
OTHERS_LABELS = {
    "none": {},
    "agent-sandbox's": {
        AGENT_SANDBOX + "sandbox-template-ref-hash": "1a2b3c4d",
        AGENT_SANDBOX + "sandbox-name-hash": "5e6f7a8b",
        AGENT_SANDBOX + "pool": "9c0d1e2f",
    },
    "Kueue's": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/managed": "true"},
    "Argo's": OF_A_RUN,
}
"""Labels that a controller of somebody else puts on a sandbox's pod."""
MANAGED = {
    "metadata": {"name": "pool-network-policy", "namespace": SANDBOXES},
    "spec": {
        "podSelector": {"matchLabels": {AGENT_SANDBOX + "sandbox-template-ref-hash": "1a2b3c4d"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "sandbox-router"}}}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}],
    },
}
"""As agent-sandbox's controller makes it for a template that leaves the network to it."""


TO_SANDBOXD = {"protocol": "TCP", "port": SANDBOXD_PORT}
MAY_ENTER = {"espalier.dev/may-reach-sandboxes": "true"}


def _policies_of_all_files():
    found = [
        item
        for path in sorted(K8S.rglob("*.yaml"))
        for item in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        if isinstance(item, dict) and item.get("kind") == "NetworkPolicy" and "spec" in item
    ]
    return [policy for policy in found if "namespace" in policy["metadata"]]


def _expect_only_sandboxds_way_in(network, labels):
    for name, pod in _generated().items():
        if pod.namespace == SANDBOXES:
            held = pod._replace(labels=pod.labels | labels)
            assert network.union(held, "Egress") == [], name
            ways_in = network.union(held, "Ingress")
            assert [way["ports"] for way in ways_in] == [[TO_SANDBOXD]] * len(ways_in) != [], name
            peers = [peer for way in ways_in for peer in way["from"]]
            assert all(peer["podSelector"]["matchLabels"] == MAY_ENTER for peer in peers), name


@needs_kubectl
@pytest.mark.parametrize("whose", OTHERS_LABELS)
@pytest.mark.parametrize("folder", [*FOLDERS, "overlays/kubeflow-single-user", "overlays/kserve"])
def test_all_policies_together_let_a_sandbox_out_nowhere(folder, whose):
    policies = of_kind(rendered(folder), "NetworkPolicy")
    _expect_only_sandboxds_way_in(Network(policies, NAMESPACES), OTHERS_LABELS[whose])


@pytest.mark.parametrize("whose", OTHERS_LABELS)
def test_policies_of_all_files_together_let_none_out(whose):
    policies = _policies_of_all_files()
    assert len(policies) > 15
    _expect_only_sandboxds_way_in(Network(policies, NAMESPACES), OTHERS_LABELS[whose])


@needs_kubectl
@every_overlay
def test_templates_whose_network_another_manages_are_refused(folder):
    objects = rendered(folder)
    policy = named(objects, "ValidatingAdmissionPolicy", "espalier-sandbox-templates")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"], rule["operations"]) == (
        ["extensions.agents.x-k8s.io"], ["sandboxtemplates"], ["CREATE", "UPDATE"],
    )  # fmt: skip
    (demand,) = policy["spec"]["validations"]
    assert "object.spec.networkPolicyManagement == 'Unmanaged'" in demand["expression"]
    binding = named(objects, "ValidatingAdmissionPolicyBinding", "espalier-sandbox-templates")
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert SANDBOXES in str(binding["spec"]["matchResources"])
    # for with the policy that agent-sandbox would make, the union is open
    network = Network([*of_kind(objects, "NetworkPolicy"), MANAGED], NAMESPACES)
    sandbox = _generated()["other-sandbox"]
    held = sandbox._replace(labels=sandbox.labels | OTHERS_LABELS["agent-sandbox's"])
    assert network.connects(held, OUTSIDE["internet"], Port(443))
    assert not network.connects(sandbox, OUTSIDE["internet"], Port(443))


@needs_kubectl
@every_overlay
def test_only_pods_with_acting_agents_reach_sandboxd(folder):
    players = {"trainer", "trainer-of-kubeflow", "ray-head", "ray-worker"}
    if folder == "overlays/trainer":
        players |= {"sft", "grpo"}
    expected = dict.fromkeys(players, str(SANDBOXD_PORT))
    for sandbox in ("sandbox", "other-sandbox"):
        assert _reaching(folder, sandbox) == _admitted(folder, sandbox) == expected


@needs_kubectl
@OVER_BASE
@pytest.mark.parametrize(
    ("source", "places"),
    [
        ("step", "s3 mlflow names"),
        ("trainer", "s3 mlflow kubernetes sandboxes names"),
        ("training-launcher", "s3 mlflow kubernetes names"),
        ("mlflow", "s3 names"),
        ("serving", "mlflow names"),
        ("serving-controller", "mlflow kubernetes serving names"),
        ("sandbox-gc", "kubernetes names"),
        ("artifact-gc", "s3 names"),
    ],
)
def test_a_pipeline_pod_reaches_only_what_it_works_with(folder, source, places):
    assert _paths(folder, source) == _expected(folder, **dict.fromkeys(places.split()))


@needs_kubectl
def test_backups_reach_storage_and_a_restore_asks_mlflow():
    for source, places in (("backup", {"s3": None}), ("restore", {"s3": None, "mlflow": None})):
        expected = _expected("overlays/local", names=None, **places)
        assert _paths("overlays/local", source) == expected


@needs_kubectl
@pytest.mark.parametrize(
    ("runtime", "alike"), [("pretraining", "step"), ("sft", "trainer"), ("grpo", "trainer")]
)
def test_a_train_jobs_pod_reaches_its_operator_besides(runtime, alike):
    folder = "overlays/trainer"
    assert _paths(folder, runtime) == _paths(folder, alike) | {"trainer-manager": "10443"}


@needs_kubectl
def test_only_nodes_of_training_reach_each_other():
    network, hosts = _cluster("overlays/trainer")
    first = hosts["grpo"]
    second = first._replace(name="second-node")
    assert all(network.connects(first, second, port) for port in PORTS)
    assert not _admitted("overlays/trainer", "grpo")


@needs_kubectl
@pytest.mark.parametrize("folder", ["overlays/gpu", "overlays/local-rollout"])
def test_only_the_agent_reaches_the_inference_server(folder):
    expected = dict.fromkeys(("trainer", "trainer-of-kubeflow", "ray-head", "ray-worker"), "8000")
    assert _reaching(folder, "rollout") == expected
    assert _admitted(folder, "rollout") == expected
    assert _paths(folder, "rollout") == NAMES


@needs_kubectl
def test_ray_pods_reach_each_other_and_the_operator_their_dashboard():
    folder, ray = "overlays/gpu", {"ray-submitter", "ray-head", "ray-worker"}
    operator = _paths(folder, "kuberay")
    for source in ray:
        reached = _paths(folder, source)
        assert {name: reached.get(name) for name in ray - {source}} == dict.fromkeys(
            ray - {source}, "all"
        )
        assert operator[source] == "8265"
        # the operator's label alone opens no dashboard
        strangers = {"false-kuberay", "beside-kuberay", "impostor", "sandbox"}
        assert not _admitted(folder, source).keys() & strangers
    assert not operator.keys() & {"trainer", "mlflow", "serving", "sandbox"}
    assert _paths(folder, "ray-submitter").keys() == {"dns", "ray-head", "ray-worker"}


# where the API servers of clusters on one machine listen, and the addresses of their services
LOCAL_CLUSTERS = {
    "kind": ("172.18.0.2:6443", "10.96.0.1:443"),
    "kind, many networks of docker": ("192.168.96.2:6443", "10.96.0.1:443"),
    "kind on podman": ("10.89.0.5:6443", "10.96.0.1:443"),
    "minikube on docker": ("192.168.49.2:8443", "10.96.0.1:443"),
    "minikube on kvm": ("192.168.39.117:8443", "10.96.0.1:443"),
    "k3d": ("172.19.0.3:6443", "10.43.0.1:443"),
    "tests/cluster": ("192.0.2.10:6443", "10.96.0.1:443"),
}


@needs_kubectl
@pytest.mark.parametrize("cluster", LOCAL_CLUSTERS)
def test_only_who_needs_it_reaches_a_local_api_server(cluster):
    network, hosts = _cluster("overlays/local")
    needing = {"trainer", "training-launcher", "sandbox-gc", "serving-controller"}
    for place in LOCAL_CLUSTERS[cluster]:
        address, port = place.split(":")
        for source in (*needing, "step", "mlflow", "serving", "minio"):
            passes = network.connects(hosts[source], Outside("there", address), Port(int(port)))
            assert passes is (source in needing), (place, source)
    # ranges of pods and services, metadata, the internet
    for address in ("10.244.0.9", "10.42.0.9", "10.96.77.3", "169.254.169.254", "198.51.100.7"):
        for port in (443, 6443, 8443):
            assert not network.connects(hosts["trainer"], Outside("there", address), Port(port))


@needs_kubectl
@every_overlay
def test_users_come_in_by_the_endpoint_of_the_champion_alone(folder):
    _, hosts = _cluster(folder)
    for stranger, expected in (("customer", SERVING), ("neighbour", {}), ("impostor", {})):
        reached = {
            name: ports
            for name, ports in _paths(folder, stranger).items()
            if getattr(hosts[name], "namespace", None) in (PIPELINE, SANDBOXES)
        }
        assert reached == expected, stranger


@needs_kubectl
@every_overlay
def test_policies_select_pods_and_none_reaches_internet_or_metadata(folder):
    network, hosts = _cluster(folder)
    pods = [host for host in hosts.values() if isinstance(host, Pod)]
    for policy in of_kind(rendered(folder), "NetworkPolicy"):
        assert any(
            pod.namespace == policy["metadata"]["namespace"]
            and selects(policy["spec"]["podSelector"], pod.labels)
            for pod in pods
        ), policy["metadata"]["name"]
    ours = [pod for pod in pods if pod.namespace in (PIPELINE, SANDBOXES)]
    assert len(ours) > 10
    for place in (OUTSIDE["internet"], OUTSIDE["metadata"]):
        assert not any(network.connects(pod, place, port) for pod in ours for port in PORTS)


@needs_kubectl
@every_overlay
def test_tracking_and_storage_let_in_only_who_needs_them(folder):
    strangers = {"sandbox", "sandbox-gc", "rollout", "neighbour", "customer"}
    admitted = _admitted(folder, "mlflow")
    assert set(admitted.values()) == {"5000"}
    assert admitted.keys() >= {"step", "trainer", "serving", "serving-controller"}
    assert not admitted.keys() & strangers
    if folder == "overlays/local":
        assert _paths(folder, "minio") == NAMES
        admitted = _admitted(folder, "minio")
        assert set(admitted.values()) == {"9000"}
        assert admitted.keys() >= {"step", "trainer", "mlflow"}
        assert not admitted.keys() & (strangers - {"sandbox-gc"} | {"serving", "internet"})


@needs_kubectl
def test_kubeflows_driver_and_steps_reach_kubeflow_besides():
    folder, own = "overlays/kubeflow", _paths("base", "trainer")
    kubeflow = {"kubeflow-server": _spelt(Port(n) for n in KUBEFLOW_PORTS), "api-server": "6443"}
    assert _paths(folder, "driver") == kubeflow | NAMES
    assert _paths("base", "driver") == NAMES
    assert _paths(folder, "trainer-of-kubeflow") == own | kubeflow
    assert _paths(folder, "trainer") == own


@needs_kubectl
def test_with_one_user_labelled_steps_reach_sandboxes_and_mlflow():
    network, hosts = _cluster("overlays/kubeflow-single-user")
    for name, port in (("sandbox", 8080), ("mlflow", 5000)):
        assert network.connects(KUBEFLOW_STEP, hosts[name], Port(port))
        assert not network.connects(KUBEFLOW_SERVER, hosts[name], Port(port))
        assert not network.connects(KUBEFLOW_STEP, hosts[name], Port(9000))
    base, base_hosts = _cluster("base")
    assert not base.connects(KUBEFLOW_STEP, base_hosts["sandbox"], Port(8080))
