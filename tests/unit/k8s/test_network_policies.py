"""Who reaches whom, by the model: no local cluster here enforces network policies."""

import pytest

from espalier.sandbox.pod import SANDBOXD_PORT
from tests.unit.cluster.objects.samples import LAPTOP_SIZED, NODES, every_manifest, job
from tests.unit.k8s.network_model import Network, Outside, Pod, Port
from tests.unit.k8s.rendering import (
    containers,
    every_overlay,
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
TRAINER_MANAGER = Pod(
    "trainer-manager",
    "kubeflow-system",
    {"app.kubernetes.io/name": "trainer", "app.kubernetes.io/component": "manager"},
)
BESIDE_TRAINER = Pod("beside-trainer", "kubeflow-system", {"app": "anything"})
KUBEFLOW_SERVER = Pod("kubeflow-server", "kubeflow", {"app": "ml-pipeline"})
KUBEFLOW_STEP = Pod(
    "kubeflow-step",
    "kubeflow",
    OF_A_RUN
    | dict.fromkeys(("espalier.dev/may-reach-mlflow", "espalier.dev/may-reach-sandboxes"), "true"),
)
ROGUE = Pod("rogue", SANDBOXES, {"app": "not-a-sandbox"})
IMPOSTOR = Pod("impostor", "elsewhere", {"espalier.dev/may-reach-sandboxes": "true"})
OUTSIDE = {
    "api-server": Outside("api-server", "203.0.113.1"),
    "s3": Outside("s3", "203.0.113.2"),
    "node": Outside("node", "192.0.2.10"),
    "metadata": Outside("metadata", "169.254.169.254"),
    "internet": Outside("internet", "198.51.100.7"),
}
NAMESPACES = {
    PIPELINE: {},
    SANDBOXES: {},
    "kube-system": {},
    "elsewhere": {},
    "kubeflow": {},
    "kubeflow-system": {},
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
    (submitter, head, worker) = pod_templates([manifests["ray-job"]])
    found = {
        "sandbox": manifests["sandbox-pod"],
        "other-sandbox": manifests["sandbox-template"],
        "step": job("ingest", LAPTOP_SIZED),
        "trainer": job("train", LAPTOP_SIZED),
        "training-launcher": job("train", NODES),
    }
    pods = {name: _pod(name, pod_templates([item])[0]) for name, item in found.items()}
    # as placement labels the step of Kubeflow that plays episodes
    episodes = pods["trainer"]
    pods["trainer-of-kubeflow"] = episodes._replace(
        name="trainer-of-kubeflow", labels=episodes.labels | OF_A_RUN
    )
    ray = {"ray-submitter": submitter, "ray-head": head, "ray-worker": worker}
    return pods | {name: _pod(name, template) for name, template in ray.items()}


def _cluster(folder):
    objects = rendered(folder)
    network = Network(of_kind(objects, "NetworkPolicy"), NAMESPACES)
    installed = {
        template.owner.partition("/")[2].removeprefix("espalier-"): template
        for template in pod_templates(objects)
    }
    pods = {name: _pod(name, template) for name, template in installed.items()} | _generated()
    strangers = (
        DNS,
        NEIGHBOUR,
        OPERATOR,
        FALSE_OPERATOR,
        BESIDE_OPERATOR,
        CUSTOMER,
        ROGUE,
        IMPOSTOR,
        DRIVER,
        KUBEFLOW_SERVER,
        TRAINER_MANAGER,
        BESIDE_TRAINER,
    )
    return network, pods | {pod.name: pod for pod in strangers} | OUTSIDE


def _paths(folder, source):
    """Everything that `source` reaches: destination -> ports."""
    network, hosts = _cluster(folder)
    found = {}
    for name, host in hosts.items():
        ports = [p for p in PORTS if name != source and network.connects(hosts[source], host, p)]
        if ports:
            found[name] = "all" if len(ports) == len(PORTS) else _spelt(ports)
    return found


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
    found = {}
    for name, host in hosts.items():
        ports = [p for p in PORTS if network.admits(hosts[destination], host, p)]
        if name != destination and ports:
            found[name] = _spelt(ports)
    return found


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
@pytest.mark.parametrize("source", ["sandbox", "other-sandbox", "rogue"])
def test_nothing_in_the_sandbox_namespace_reaches_anything(folder, source):
    assert _paths(folder, source) == {}


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("sandbox", ["sandbox", "other-sandbox"])
def test_only_pods_with_acting_agents_reach_sandboxd(folder, sandbox):
    players = {"trainer", "trainer-of-kubeflow", "ray-head", "ray-worker"}
    if folder == "overlays/trainer":
        players |= {"sft", "grpo"}
    expected = dict.fromkeys(players, str(SANDBOXD_PORT))
    assert _reaching(folder, sandbox) == expected
    assert _admitted(folder, sandbox) == expected


@needs_kubectl
@every_overlay
def test_nobody_reaches_what_is_no_sandbox_in_the_sandbox_namespace(folder):
    network, hosts = _cluster(folder)
    assert not any(network.connects(host, ROGUE, port) for host in hosts.values() for port in PORTS)


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
@pytest.mark.parametrize(("source", "places"), [("backup", "s3"), ("restore", "s3 mlflow")])
def test_backups_reach_storage_and_a_restore_asks_mlflow(source, places):
    expected = _expected("overlays/local", names=None, **dict.fromkeys(places.split()))
    assert _paths("overlays/local", source) == expected


@needs_kubectl
@pytest.mark.parametrize(
    ("runtime", "alike"), [("pretraining", "step"), ("sft", "trainer"), ("grpo", "trainer")]
)
def test_a_train_jobs_pod_reaches_its_operator_besides(runtime, alike):
    folder = "overlays/trainer"
    assert _paths(folder, runtime) == _paths(folder, alike) | {"trainer-manager": "10443"}


@needs_kubectl
def test_the_local_s3_server_reaches_nothing():
    assert _paths("overlays/local", "minio") == NAMES
    admitted = _admitted("overlays/local", "minio")
    assert set(admitted.values()) == {"9000"}
    assert admitted.keys() >= {"step", "trainer", "mlflow"}
    assert not admitted.keys() & {"serving", "sandbox", "neighbour", "customer", "internet"}


@needs_kubectl
@every_overlay
def test_tracking_admits_those_who_write_and_read_it(folder):
    admitted = _admitted(folder, "mlflow")
    assert set(admitted.values()) == {"5000"}
    assert admitted.keys() >= {"step", "trainer", "serving", "serving-controller"}
    assert not admitted.keys() & {"sandbox", "sandbox-gc", "rollout", "neighbour", "customer"}


@needs_kubectl
def test_with_gpus_only_the_agent_reaches_the_inference_server():
    expected = dict.fromkeys(("trainer", "trainer-of-kubeflow", "ray-head", "ray-worker"), "8000")
    assert _reaching("overlays/gpu", "rollout") == expected
    assert _admitted("overlays/gpu", "rollout") == expected
    assert _paths("overlays/gpu", "rollout") == NAMES


@needs_kubectl
def test_ray_pods_reach_each_other_and_the_operator_their_dashboard():
    ray = {"ray-submitter": "all", "ray-head": "all", "ray-worker": "all"}
    for source in ray:
        reached = _paths("overlays/gpu", source)
        assert {name: reached[name] for name in ray if name != source} == {
            name: "all" for name in ray if name != source
        }
    operator = _paths("overlays/gpu", "kuberay")
    assert {name: operator.get(name) for name in ray} == dict.fromkeys(ray, "8265")
    assert operator.keys() & {"trainer", "mlflow", "serving", "sandbox"} == set()
    assert _paths("overlays/gpu", "ray-submitter").keys() == {"dns", "ray-head", "ray-worker"}


@needs_kubectl
@pytest.mark.parametrize("stranger", ["false-kuberay", "beside-kuberay", "impostor", "sandbox"])
def test_the_operators_label_alone_opens_no_dashboard(stranger):
    for pod in ("ray-head", "ray-worker", "ray-submitter"):
        assert stranger not in _admitted("overlays/gpu", pod)


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
@pytest.mark.parametrize(
    "source", ["trainer", "training-launcher", "sandbox-gc", "serving-controller"]
)
def test_the_local_overlay_fits_every_local_cluster(cluster, source):
    network, hosts = _cluster("overlays/local")
    for place in LOCAL_CLUSTERS[cluster]:
        address, port = place.split(":")
        assert network.connects(hosts[source], Outside(cluster, address), Port(int(port))), place


@needs_kubectl
@pytest.mark.parametrize("source", ["step", "mlflow", "serving", "minio"])
def test_who_needs_no_api_server_reaches_none_of_them(source):
    network, hosts = _cluster("overlays/local")
    for place in {place for places in LOCAL_CLUSTERS.values() for place in places}:
        address, port = place.split(":")
        assert not network.connects(hosts[source], Outside("there", address), Port(int(port)))


@needs_kubectl
@pytest.mark.parametrize(
    "address", ["10.244.0.9", "10.42.0.9", "10.96.77.3", "169.254.169.254", "198.51.100.7"]
)
def test_the_local_overlay_opens_no_range_of_pods_or_services(address):
    network, hosts = _cluster("overlays/local")
    for port in (443, 6443, 8443):
        assert not network.connects(hosts["trainer"], Outside("there", address), Port(port))


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("place", ["internet", "metadata"])
def test_no_pod_reaches_the_internet_or_metadata_service(folder, place):
    network, hosts = _cluster(folder)
    ours = [
        h for h in hosts.values() if isinstance(h, Pod) and h.namespace in (PIPELINE, SANDBOXES)
    ]
    assert len(ours) > 10
    assert not any(network.connects(pod, hosts[place], port) for pod in ours for port in PORTS)


@needs_kubectl
@every_overlay
def test_users_come_in_by_the_endpoint_of_the_champion_alone(folder):
    ours = (PIPELINE, SANDBOXES)
    _, hosts = _cluster(folder)
    for stranger, expected in (
        ("customer", SERVING),
        ("neighbour", {}),
        ("impostor", {}),
    ):
        reached = {
            name: ports
            for name, ports in _paths(folder, stranger).items()
            if getattr(hosts[name], "namespace", None) in ours
        }
        assert reached == expected, stranger


@needs_kubectl
@every_overlay
def test_every_policy_selects_a_pod_that_there_is(folder):
    from tests.unit.k8s.network_model import selects

    _, hosts = _cluster(folder)
    pods = [host for host in hosts.values() if isinstance(host, Pod)]
    idle = [
        policy["metadata"]["name"]
        for policy in of_kind(rendered(folder), "NetworkPolicy")
        if not any(
            pod.namespace == policy["metadata"]["namespace"]
            and selects(policy["spec"]["podSelector"], pod.labels)
            for pod in pods
        )
    ]
    assert idle == []


KUBEFLOW_PATHS = {
    "kubeflow-server": " ".join(str(port) for port in KUBEFLOW_PORTS),
    "api-server": "6443",
}


@needs_kubectl
def test_a_kubeflow_driver_reaches_kubeflow_and_the_api_server():
    assert _paths("overlays/kubeflow", "driver") == KUBEFLOW_PATHS | NAMES
    assert _paths("base", "driver") == NAMES


@needs_kubectl
def test_a_kubeflow_step_reaches_what_its_job_does_besides():
    folder = "overlays/kubeflow"
    own = _paths("base", "trainer")
    assert _paths(folder, "trainer-of-kubeflow") == own | KUBEFLOW_PATHS
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
