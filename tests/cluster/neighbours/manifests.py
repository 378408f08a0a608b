"""The neighbours' own manifests, rendered from their checkouts, changed where this cluster differs.

Changed: images; requests and limits, as the node is small; a namespace of its own for KubeRay, with
the label by which our policies let it reach Ray; the trainer's feature gate TrainJobStatus is open,
by which a TrainJob's status has the progress that its pods report. Left out: Kueue's APIService and
the server behind it (VisibilityOnDemand), since our API server does not aggregate others, and what
the trainer fetches of JobSet from GitHub, which is installed beside it.
"""

import shutil

import yaml

from tests.cluster import objects
from tests.cluster.neighbours import images

NAMESPACES = {
    "agent-sandbox": "agent-sandbox-system",
    "kuberay": "kuberay-operator",
    "jobset": "jobset-system",
    "trainer": "kubeflow-system",
    "kueue": "kueue-system",
}
DEPLOYMENTS = {
    "agent-sandbox": "agent-sandbox-controller",
    "kuberay": "kuberay-operator",
    "jobset": "jobset-controller-manager",
    "trainer": "kubeflow-trainer-controller-manager",
    "kueue": "kueue-controller-manager",
}
_FOLDERS = {
    "agent-sandbox": "k8s",
    "kuberay": "config/default",
    "jobset": "config/default",
    "kueue": "config/default",
}
_LEFT_OUT = {"APIService", "ServiceMonitor"}
_MORE_ARGUMENTS = {"kueue": ("--feature-gates=VisibilityOnDemand=false",)}
_TRAINER_REMOTE = "../../third-party/jobset"
_TRAINER_SETTINGS = "kubeflow-trainer-config"


def of(places, sources, name):
    """A neighbour's objects: CustomResourceDefinitions first, then everything else."""
    folder = _overlay(places, sources, name)
    found = [one for one in objects.rendered(places, folder) if one["kind"] not in _LEFT_OUT]
    for one in found:
        if one["kind"] == "Deployment":
            _adapt(one, images.name_of(sources, name), _MORE_ARGUMENTS.get(name, ()))
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == _TRAINER_SETTINGS:
            _open_gate(one)
    crds = [one for one in found if one["kind"] == "CustomResourceDefinition"]
    return crds, [one for one in found if one["kind"] != "CustomResourceDefinition"]


def _overlay(places, sources, name):
    """The kustomization to render: theirs, or one of ours around it."""
    module = sources.modules[name]
    folder = places.state / "neighbours" / name
    shutil.rmtree(folder, ignore_errors=True)
    if name == "trainer":
        shutil.copytree(module / "manifests", folder)
        manager = folder / "overlays" / "manager"
        described = yaml.safe_load((manager / "kustomization.yaml").read_text())
        described["resources"].remove(_TRAINER_REMOTE)
        (manager / "kustomization.yaml").write_text(yaml.safe_dump(described))
        return manager
    theirs = module / _FOLDERS[name]
    if name != "kuberay":
        return theirs
    folder.mkdir(parents=True)
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACES[name], "labels": {"espalier.dev/may-reach-ray": "true"}},
    }
    (folder / "namespace.yaml").write_text(yaml.safe_dump(namespace))
    described = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACES[name],
        "resources": [
            "namespace.yaml",
            f"{'../' * (len(folder.parts) - 1)}{theirs.relative_to('/')}",
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(described))
    return folder


def _open_gate(settings):
    (name,) = settings["data"]
    content = yaml.safe_load(settings["data"][name])
    content["featureGates"] = {"TrainJobStatus": True}
    settings["data"][name] = yaml.safe_dump(content)


def _adapt(deployment, image, arguments):
    """The image, and requests that fit a small node that has other work."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = image
    container["imagePullPolicy"] = "IfNotPresent"
    container.setdefault("args", []).extend(arguments)
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    container.setdefault("env", []).append(objects.NO_WATCH_LISTS)
