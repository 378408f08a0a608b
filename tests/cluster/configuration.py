"""What containerd, the network plugins, the kubelet, kube-proxy and CoreDNS read."""

import json
from pathlib import Path

import yaml

from tests.cluster.images import PAUSE, node_mounts
from tests.cluster.network import (
    DNS_SERVICE,
    NODE_NAME,
    POD_NETWORK,
    PODS,
    bridge_is_filtered,
)
from tests.cluster.processes import CGROUP

NODE_ENVIRONMENT = "node-environment"
"""The runtime of pods that name no RuntimeClass: with the node's environment, read-only."""
_CONTAINERD = """\
version = 3
root = "{state}/containerd"
state = "{state}/containers"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  # what root of a container may not do
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "{node_environment}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{node_environment}]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{state}/node-environment.json"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{node_environment}.options]
        Root = "{state}/runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        Root = "{state}/runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]
      runtime_type = "io.containerd.runsc.v1"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = "{state}/runsc.toml"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{state}/cni"
"""
_COREFILE = """\
.:53 {{
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {keys}/dns.kubeconfig
  }}
  cache 5
}}
"""


def write(places, default_spec):
    """Write all of them below the state folder.

    Args:
        places: of the cluster.
        default_spec: the runtime specification that containerd would start from, as JSON.
    """
    state = places.state
    _containerd(places)
    spec = json.loads(default_spec)
    spec["mounts"] += node_mounts(places)
    (state / "node-environment.json").write_text(json.dumps(spec))
    (state / "runsc.toml").write_text(f'root = "{state}/runsc"\n')
    (state / "cni").mkdir(exist_ok=True)
    (state / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(places)))
    (state / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(places)))
    (state / "proxy.yaml").write_text(yaml.safe_dump(_proxy(places)))
    (state / "Corefile").write_text(_COREFILE.format(keys=places.keys))


def _containerd(places):
    text = _CONTAINERD.format(
        state=places.state,
        socket=places.containerd_socket,
        pause=PAUSE,
        node_environment=NODE_ENVIRONMENT,
    )
    Path(places.state, "containerd.toml").write_text(text)


def _bridge(places):
    """Pods on a bridge of the node; it enforces no NetworkPolicy."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(places.state / "pod-addresses"),
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "0.4.0", "name": POD_NETWORK, "plugins": [bridge]}


def _kubelet(places):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(places.keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(places.keys / "kubelet.crt"),
        "tlsPrivateKeyFile": str(places.keys / "kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failSwapOn": False,
        "failCgroupV1": False,
        # root here may lack rights over the machine, as it does in a container
        "featureGates": {"KubeletInUserNamespace": True},
        "containerRuntimeEndpoint": f"unix://{places.containerd_socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        # nothing is pulled, so what was imported must stay
        "imageGCHighThresholdPercent": 100,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "volumePluginDir": str(places.state / "volume-plugins"),
        "podLogsDir": str(places.state / "pod-logs"),
    }


def _proxy(places):
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": str(places.keys / "proxy.kubeconfig")},
        "hostnameOverride": NODE_NAME,
        "nftables": {"masqueradeAll": not bridge_is_filtered()},
        "conntrack": {"maxPerCore": 0},
    }
