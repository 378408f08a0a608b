"""The parts of the cluster: their commands, the order they start in, and when each is ready."""

import os
import subprocess

from tests.cluster import processes
from tests.cluster.network import NODE_ADDRESS, NODE_NAME, SERVICES, inside

ETCD = "http://127.0.0.1:2379"
IN_ORDER = (
    "etcd", "apiserver", "controller-manager", "scheduler", "containerd", "kubelet", "proxy", "dns",
)  # fmt: skip
_ISSUER = "https://kubernetes.default.svc.cluster.local"


def start_etcd(places):
    """Its data is on a disk that nobody relies on after a crash."""
    data = f"--data-dir={places.state}/etcd"
    listen = (f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}")
    peer = "--listen-peer-urls=http://127.0.0.1:2380"
    processes.start(places, "etcd", "etcd", data, *listen, peer, "--unsafe-no-fsync")


def start_api_server(places):
    """And wait until it answers."""
    keys = places.keys
    processes.start(
        places, "apiserver", "kube-apiserver",
        f"--etcd-servers={ETCD}", "--secure-port=6443", f"--advertise-address={NODE_ADDRESS}",
        f"--tls-cert-file={keys}/apiserver.crt", f"--tls-private-key-file={keys}/apiserver.key",
        f"--client-ca-file={keys}/ca.crt",
        f"--kubelet-client-certificate={keys}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={keys}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={keys}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={SERVICES}", f"--service-account-issuer={_ISSUER}",
        f"--service-account-key-file={keys}/service-accounts.pub",
        f"--service-account-signing-key-file={keys}/service-accounts.key",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false", "--allow-privileged=true", "--profiling=false",
        # Debian's etcd 3.4 cannot tell how far a watch has come, which lists by watches wait for
        "--feature-gates=WatchList=false",
    )  # fmt: skip
    processes.wait_until(places, "apiserver", lambda: answers(places), timeout_s=120)


def start_controllers(places):
    """The controller manager and the scheduler; alone, so neither has to be elected."""
    keys, alone = places.keys, "--leader-elect=false"
    processes.start(
        places, "controller-manager", "kube-controller-manager", alone,
        f"--kubeconfig={keys}/controller-manager.kubeconfig",
        f"--service-account-private-key-file={keys}/service-accounts.key",
        "--use-service-account-credentials=true", f"--root-ca-file={keys}/ca.crt",
        f"--flex-volume-plugin-dir={places.state}/volume-plugins",
    )  # fmt: skip
    processes.start(
        places, "scheduler", "kube-scheduler", alone, f"--kubeconfig={keys}/scheduler.kubeconfig"
    )


def start_containerd(places):
    """And wait until it takes images."""
    processes.start(places, "containerd", "containerd", f"--config={places.state}/containerd.toml")
    processes.wait_until(
        places, "containerd", lambda: ctr(places, "version").returncode == 0, timeout_s=60
    )


def start_node(places):
    """The kubelet, and addresses and names of services; and wait until the node is ready."""
    state, keys = places.state, places.keys
    processes.start(
        places, "kubelet", "kubelet", f"--config={state}/kubelet.yaml",
        f"--kubeconfig={keys}/kubelet.kubeconfig", f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}", f"--root-dir={state}/kubelet",
        f"--cert-dir={state}/kubelet-keys",
    )  # fmt: skip
    processes.start(places, "proxy", "kube-proxy", f"--config={state}/proxy.yaml")
    processes.start(places, "dns", "coredns", "-conf", f"{state}/Corefile")
    processes.wait_until(places, "kubelet", lambda: node_is_ready(places), timeout_s=120)


def answers(places):
    """Whether the API server does, and has made its own service."""
    ready = kubectl(places, "get", "--raw=/readyz").returncode == 0
    service = kubectl(places, "get", "service", "kubernetes", "--output=name")
    return ready and service.returncode == 0


def node_is_ready(places):
    condition = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
    return kubectl(places, "get", "nodes", f"--output=jsonpath={condition}").stdout == "True"


def kubectl(places, *arguments, stdin=None):
    """Run our kubectl as the cluster's administrator; whoever calls looks at its status."""
    command = [places.programs / "kubectl", f"--kubeconfig={places.kubeconfig}", *arguments]
    return subprocess.run(
        inside(*command),
        env={**os.environ, **kubectl_environment(places)},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def kubectl_environment(places):
    """Its memory of what the API server has is this cluster's, and ends with it."""
    return {"KUBECACHEDIR": str(places.state / "kubectl")}


def ctr(places, *arguments):
    """Run containerd's client in the kubelet's namespace of images."""
    command = [places.programs / "ctr", f"--address={places.containerd_socket}"]
    return subprocess.run(
        inside(*command, "--namespace=k8s.io", *arguments),
        capture_output=True,
        text=True,
        check=False,
    )
