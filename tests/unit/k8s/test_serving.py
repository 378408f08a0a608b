"""The serving Deployments and the programs in them agree."""

import importlib
from pathlib import PurePosixPath

import pytest

from espalier.cluster.objects import serving
from espalier.config import ServingConfig
from espalier.serving import controller
from tests.unit.k8s.rendering import every_overlay, named, needs_kubectl, rendered


def _pod(folder, name):
    spec = named(rendered(folder), "Deployment", name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


@needs_kubectl
@every_overlay
def test_a_pod_has_time_to_finish_its_answers(folder):
    spec, _ = _pod(folder, serving.DEPLOYMENT)
    config = ServingConfig()
    assert config.linger_s + config.drain_s < spec["terminationGracePeriodSeconds"]


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("name", [serving.DEPLOYMENT, "espalier-serving-controller"])
def test_every_probed_path_is_on_a_named_port(folder, name):
    _, container = _pod(folder, name)
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


@needs_kubectl
@every_overlay
def test_the_controller_parses_its_arguments_and_listens_where_probed(folder):
    _, container = _pod(folder, "espalier-serving-controller")
    given = controller.argument_parser().parse_args(container["args"])
    assert container["ports"] == [{"name": "health", "containerPort": given.port}]
    assert given.namespace == "espalier-pipeline"


@needs_kubectl
@every_overlay
def test_the_endpoint_reads_digests_and_the_controller_one_key(folder):
    spec, container = _pod(folder, serving.DEPLOYMENT)
    (setting,) = [word for word in container["args"] if word.startswith("serving.")]
    path = PurePosixPath(setting.partition("serving.api_keys_file=")[2])
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "keys"]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "keys"]
    assert (mount["mountPath"], mount["readOnly"]) == (str(path.parent), True)
    assert volume["secret"]["secretName"] == serving.KEYS_SECRET
    # the controller's key is not among what the endpoint sees
    assert volume["secret"]["items"] == [{"key": serving.KEYS_ENTRY, "path": path.name}]
    assert not volume["secret"].get("optional", False)
    _, following = _pod(folder, "espalier-serving-controller")
    (variable,) = [one for one in following["env"] if one["name"] == serving.KEY_VARIABLE]
    reference = {"name": serving.KEYS_SECRET, "key": serving.CONTROLLER_ENTRY}
    assert variable["valueFrom"]["secretKeyRef"] == reference


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("name", [serving.DEPLOYMENT, "espalier-serving-controller"])
def test_the_programs_are_there(folder, name):
    _, container = _pod(folder, name)
    python, flag, module, *_ = container["command"]
    assert (python, flag) == ("python", "-m")
    assert callable(importlib.import_module(module).main)
