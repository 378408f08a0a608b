"""The kserve overlay and the controller's object, also by the CRDs of a checkout of KServe."""

import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from espalier.cluster.objects import llm_services
from espalier.serving import controller
from tests.unit.cluster.objects.samples import every_manifest
from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, KSERVE_VERBS, PIPELINE
from tests.unit.k8s.custom_resources import whole
from tests.unit.k8s.network_model import Network, Pod, Port
from tests.unit.k8s.rendering import named, needs_kubectl, of_kind, rendered
from tests.unit.k8s.test_rbac import granted, verbs_of

FOLDER = "overlays/kserve"
CONTROLLER = "espalier-serving-controller"
SERVICE = every_manifest()["llm-inference-service"]


def config():
    return named(rendered(FOLDER), "LLMInferenceServiceConfig", llm_services.CONFIG)


@needs_kubectl
def test_the_services_base_fits_its_kind():
    jsonschema.validate(config(), whole(config()))
    assert SERVICE["spec"]["baseRefs"] == [{"name": config()["metadata"]["name"]}]
    # they are labels of the selector that KServe gives its Deployment
    assert not [key for key in config()["spec"]["labels"] if key.startswith("app.kubernetes.io/")]


@needs_kubectl
def test_with_kserve_the_controller_has_these_rights_alone():
    assert granted(rendered(FOLDER)) == verbs_of(ALLOWED_VERBS | KSERVE_VERBS)


@needs_kubectl
def test_with_kserve_no_deployment_of_ours_serves():
    names = {item["metadata"]["name"] for item in of_kind(rendered(FOLDER), "Deployment")}
    assert names == {"espalier-mlflow", CONTROLLER}
    deployment = named(rendered(FOLDER), "Deployment", CONTROLLER)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = controller.argument_parser().parse_args(container["args"])
    assert given.set_ == ["kubernetes.serving=llmisvc"]


@needs_kubectl
def test_the_controller_and_customers_reach_the_pods():
    objects = rendered(FOLDER)
    customers = {"espalier.dev/may-reach-serving": "true"}
    network = Network(
        of_kind(objects, "NetworkPolicy"), {PIPELINE: {}, "customers": customers, "other": {}}
    )
    labels = named(objects, "Deployment", CONTROLLER)["spec"]["template"]["metadata"]["labels"]
    named_by_kserve = {"app.kubernetes.io/name": llm_services.NAME}
    served = Pod("served", PIPELINE, named_by_kserve | config()["spec"]["labels"])
    assert network.connects(Pod("controller", PIPELINE, labels), served, Port(8000))
    assert network.connects(Pod("customer", "customers", {}), served, Port(8000))
    assert not network.connects(Pod("stranger", "other", {}), served, Port(8000))


@pytest.fixture(scope="module")
def crds():
    """Kind -> schema of version v1alpha2; that no field is unknown is seen by our own schema."""
    sources = os.environ.get("ESPALIER_TEST_KSERVE")
    if not sources:
        pytest.skip("ESPALIER_TEST_KSERVE names no checkout of kserve/kserve (0.20.0)")
    paths = (Path(sources) / "config/crd/full/llmisvc").glob("serving.kserve.io_*.yaml")
    specs = [yaml.safe_load(path.read_text(encoding="utf-8"))["spec"] for path in paths]
    return {
        spec["names"]["kind"]: version["schema"]["openAPIV3Schema"]
        for spec in specs
        for version in spec["versions"]
        if version["name"] == "v1alpha2"
    }


@needs_kubectl
def test_service_and_base_fit_the_real_schemas(crds):
    jsonschema.validate(SERVICE, crds["LLMInferenceService"])
    jsonschema.validate(config(), crds["LLMInferenceServiceConfig"])
