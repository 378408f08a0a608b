"""The serving Deployments and the programs in them agree."""

import base64
import importlib
import os
import re
import subprocess
from pathlib import PurePosixPath

import pytest
import yaml

from espalier.cluster.objects import serving
from espalier.config import ServingConfig
from espalier.serving import controller
from tests.unit.k8s.rendering import K8S, every_overlay, named, needs_kubectl, rendered

README = (K8S / "README.md").read_text(encoding="utf-8")


def _pod(folder, name):
    spec = named(rendered(folder), "Deployment", name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


@needs_kubectl
@every_overlay
@pytest.mark.parametrize("name", [serving.DEPLOYMENT, "espalier-serving-controller"])
def test_a_program_that_is_there_is_probed_on_its_port(folder, name):
    _, container = _pod(folder, name)
    assert container["command"][:2] == ["python", "-m"]
    assert callable(importlib.import_module(container["command"][2]).main)
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


@needs_kubectl
@every_overlay
def test_arguments_of_the_programs_fit_their_pods(folder):
    _, container = _pod(folder, "espalier-serving-controller")
    given = controller.argument_parser().parse_args(container["args"])
    assert container["ports"] == [{"name": "health", "containerPort": given.port}]
    assert given.namespace == "espalier-pipeline"
    spec, _ = _pod(folder, serving.DEPLOYMENT)
    config = ServingConfig()  # a pod has time to finish its answers
    assert config.linger_s + config.drain_s < spec["terminationGracePeriodSeconds"]


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
def test_vllm_gets_no_argument_of_the_endpoint(folder, tmp_path):
    """The patch of the README, in an overlay of one's own."""
    (given,) = re.findall(r"^    command: \[.*?fetched.*?(?=^$)", README, re.MULTILINE | re.DOTALL)
    patched = {"name": serving.CONTAINER} | yaml.safe_load(given)
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": serving.DEPLOYMENT, "namespace": "espalier-pipeline"},
        "spec": {"template": {"spec": {"containers": [patched]}}},
    }
    base = os.path.relpath(K8S / folder, tmp_path)  # kustomize takes no absolute path
    kustomization = {"resources": [base], "patches": [{"patch": yaml.safe_dump(patch)}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    _, container = _pod(tmp_path, serving.DEPLOYMENT)
    assert container["command"][:4] == ["python", "-m", "espalier.serving.fetched", "vllm"]
    assert not container.get("args")


@needs_kubectl
def test_adding_a_key_keeps_the_controllers_own(tmp_path):
    (command,) = re.findall(r"^kubectl .*patch secret .*\n.*", README, re.MULTILINE)
    (tmp_path / serving.KEYS_ENTRY).write_text("alice\nbob\n")
    held = {serving.KEYS_ENTRY: "b2xk", serving.CONTROLLER_ENTRY: "b3du"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": serving.KEYS_SECRET}}
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(secret | {"data": held}))
    named_there = f"secret {serving.KEYS_SECRET}"
    assert named_there in command
    local = command.replace(named_there, "--local -f secret.yaml -o yaml")
    done = subprocess.run(
        ["bash", "-c", local], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    digests = base64.b64encode(b"alice\nbob\n").decode()
    assert yaml.safe_load(done.stdout)["data"] == held | {serving.KEYS_ENTRY: digests}
