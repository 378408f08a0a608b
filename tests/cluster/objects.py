"""What is applied once the API server answers: names for services, volumes, and espalier itself."""

import base64
import hashlib
import os
import secrets

import yaml

from espalier.cluster.objects.serving import CONTROLLER_ENTRY, KEYS_ENTRY, KEYS_SECRET
from tests.cluster.network import DNS_SERVICE, NODE_ADDRESS
from tests.cluster.parts import kubectl
from tests.cluster.places import REPOSITORY, ClusterError
from tests.unit.k8s.allowed_verbs import PIPELINE

OVERLAY = REPOSITORY / "k8s" / "overlays" / "local"
CLAIMS = ("espalier-minio", "espalier-mlflow")
ACCESS_KEY = "espalier"
NO_WATCH_LISTS = {"name": "KUBE_FEATURE_WatchListClient", "value": "false"}
"""Environment of controllers: Debian's etcd 3.4 cannot tell how far a watch has come, which lists
by watches wait for."""
_USER = 65532
_DNS_READS = [
    {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    },
]
_DNS_PORTS = [
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
]


def install(places):
    """Everything that pods count on; the Deployments of espalier stay asleep until `wake`."""
    apply(
        places,
        [*_names(), *(volume(places, claim) for claim in CLAIMS), _namespace()],
    )
    apply(places, [_s3_secret(), _serving_keys()])
    apply_asleep(places, OVERLAY)


def apply_asleep(places, overlay):
    """Apply an overlay whose Deployments have no pods yet, and whose CronJobs start none."""
    objects = rendered(places, overlay)
    for item in objects:
        if item["kind"] == "Deployment":
            item["spec"]["replicas"] = 0
        if item["kind"] == "CronJob":
            item["spec"]["suspend"] = True
    apply(places, objects)


def rendered(places, folder):
    """The objects of a kustomization.

    Raises:
        ClusterError: with what kubectl said.
    """
    done = kubectl(places, "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder))
    if done.returncode != 0:
        raise ClusterError(f"kubectl kustomize {folder}: {done.stderr.strip()[-2000:]}")
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def apply(places, objects):
    """Apply on the server.

    Raises:
        ClusterError: with what the server said.
    """
    text = yaml.safe_dump_all(objects)
    flags = ("--server-side", "--force-conflicts", "--filename=-")
    done = kubectl(places, "apply", *flags, stdin=text)
    if done.returncode != 0:
        raise ClusterError(f"kubectl apply: {done.stderr.strip()[-2000:]}")


def wake(places, *deployments, timeout_s):
    """Give Deployments of the pipeline their pod, and wait until it is ready."""
    names = [f"deployment/{name}" for name in deployments]
    for arguments in (
        ("scale", *names, "--replicas=1"),
        ("rollout", "status", *names, f"--timeout={timeout_s}s"),
    ):
        done = kubectl(places, f"--namespace={PIPELINE}", *arguments)
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")


def _names():
    """CoreDNS listens on the node; a service without a selector leads there."""
    described = {"name": "kube-dns", "namespace": "kube-system"}
    labels = {"kubernetes.io/service-name": "kube-dns"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "espalier:dns"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "espalier:dns"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": described,
            "spec": {"clusterIP": DNS_SERVICE, "ports": _DNS_PORTS},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**described, "name": "kube-dns-node", "labels": labels},
            "addressType": "IPv4",
            "ports": _DNS_PORTS,
            "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "espalier:dns"},
            "rules": _DNS_READS,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "espalier:dns"},
            "roleRef": role,
            "subjects": [user],
        },
    ]


def volume(places, claim):
    """A folder of the node for a claim; the kubelet does not set owners of such folders."""
    folder = places.state / "volumes" / claim
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, _USER, _USER)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim},
        "spec": {
            # it has one node, so both are true
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "capacity": {"storage": "20Gi"},
            "claimRef": {"namespace": PIPELINE, "name": claim},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


def _namespace():
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PIPELINE}}


def _s3_secret():
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "espalier-s3", "namespace": PIPELINE},
        "stringData": {"access_key": ACCESS_KEY, "secret_key": secrets.token_hex(20)},
    }


def _serving_keys():
    key = secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEYS_SECRET, "namespace": PIPELINE},
        "stringData": {
            KEYS_ENTRY: f"{CONTROLLER_ENTRY} sha256:{digest}\n",
            CONTROLLER_ENTRY: key,
        },
    }


def serving_key(places):
    """A key that the endpoint knows: the controller's."""
    found = _read(places, "secret", KEYS_SECRET, f"{{.data.{CONTROLLER_ENTRY}}}")
    return base64.b64decode(found).decode()


def s3_environment(places):
    """Where the cluster's S3 is and its keys, under the names that every S3 client reads."""
    address = _read(places, "service", "espalier-minio", "{.spec.clusterIP}")
    secret_key = _read(places, "secret", "espalier-s3", "{.data.secret_key}")
    return {
        "AWS_ENDPOINT_URL_S3": f"http://{address}:9000",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": base64.b64decode(secret_key).decode(),
    }


def _read(places, kind, name, path):
    asked = kubectl(
        places, f"--namespace={PIPELINE}", "get", kind, name, f"--output=jsonpath={path}"
    )
    if asked.returncode != 0:
        raise ClusterError(f"kubectl get {kind} {name}: {asked.stderr.strip()}")
    return asked.stdout
