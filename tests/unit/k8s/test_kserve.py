"""The kserve overlay and the controller's objects, also by the CRDs of a checkout of KServe."""

import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from espalier.cluster.objects import llm_services
from espalier.config import KubernetesConfig
from espalier.serving import controller
from tests.unit.cluster.objects.samples import every_manifest
from tests.unit.k8s.allowed_verbs import ALLOWED_VERBS, KSERVE_VERBS, PIPELINE
from tests.unit.k8s.custom_resources import whole
from tests.unit.k8s.network_model import Network, Pod, Port
from tests.unit.k8s.rendering import named, needs_kubectl, of_kind, rendered
from tests.unit.k8s.test_rbac import granted

FOLDER = "overlays/kserve"
CONTROLLER = "espalier-serving-controller"
MEMBER = every_manifest()["llm-inference-service"]


def config():
    return named(rendered(FOLDER), "LLMInferenceServiceConfig", llm_services.CONFIG)


@needs_kubectl
def test_the_members_base_fits_its_kind():
    jsonschema.validate(config(), whole(config()))
    assert MEMBER["spec"]["baseRefs"] == [{"name": config()["metadata"]["name"]}]
    # they are labels of the selector that KServe gives its Deployment
    assert not [key for key in config()["spec"]["labels"] if key.startswith("app.kubernetes.io/")]


@needs_kubectl
def test_with_kserve_the_controller_has_these_rights_alone():
    expected = {
        account: {key: set(verbs.split()) for key, verbs in rights.items()}
        for account, rights in (ALLOWED_VERBS | KSERVE_VERBS).items()
    }
    assert granted(rendered(FOLDER)) == expected


@needs_kubectl
def test_with_kserve_no_deployment_of_ours_serves():
    names = {item["metadata"]["name"] for item in of_kind(rendered(FOLDER), "Deployment")}
    assert names == {"espalier-mlflow", CONTROLLER}
    (container,) = named(rendered(FOLDER), "Deployment", CONTROLLER)["spec"]["template"]["spec"][
        "containers"
    ]
    given = controller.argument_parser().parse_args(container["args"])
    assert given.set_ == ["kubernetes.serving=llmisvc"]


@needs_kubectl
@pytest.mark.parametrize("name", [llm_services.STABLE, llm_services.CANARY])
def test_the_controller_and_customers_reach_the_members(name):
    objects = rendered(FOLDER)
    customers = {"espalier.dev/may-reach-serving": "true"}
    network = Network(
        of_kind(objects, "NetworkPolicy"), {PIPELINE: {}, "customers": customers, "other": {}}
    )
    labels = named(objects, "Deployment", CONTROLLER)["spec"]["template"]["metadata"]["labels"]
    member = Pod(name, PIPELINE, {"app.kubernetes.io/name": name, **config()["spec"]["labels"]})
    assert network.connects(Pod("controller", PIPELINE, labels), member, Port(8000))
    assert network.connects(Pod("customer", "customers", {}), member, Port(8000))
    assert not network.connects(Pod("stranger", "other", {}), member, Port(8000))


def test_a_weight_without_a_group_is_refused_by_the_excerpt():
    alone = {**MEMBER, "spec": {**MEMBER["spec"], "router": {"route": {"weight": 1}}}}
    with pytest.raises(jsonschema.ValidationError, match="'weight'"):
        jsonschema.validate(alone, whole(alone))


def test_serving_is_by_deployments_unless_said_otherwise():
    assert KubernetesConfig().serving == "deployment"


@pytest.fixture(scope="module")
def crds():
    """Kind -> schema of version v1alpha2, closed to fields that the API server would drop."""
    sources = os.environ.get("ESPALIER_TEST_KSERVE")
    if not sources:
        pytest.skip("ESPALIER_TEST_KSERVE names no checkout of kserve/kserve (0.20.0)")
    found = {}
    for path in (Path(sources) / "config/crd/full/llmisvc").glob("serving.kserve.io_*.yaml"):
        crd = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        for version in crd["spec"]["versions"]:
            if version["name"] == "v1alpha2":
                found[crd["spec"]["names"]["kind"]] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema):
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made |= {} if is_open else {"additionalProperties": False}
    return made


@pytest.mark.parametrize("stage", ["made", "weighed", "started", "stopped"])
def test_a_member_fits_the_real_schema(crds, stage):
    patches = {
        "made": {},
        "weighed": llm_services.weighted(500, 0.5),
        "started": llm_services.started(0.0),
        "stopped": llm_services.stopped(),
    }
    spec = MEMBER["spec"] | patches[stage].get("spec", {})
    jsonschema.validate({**MEMBER, "spec": spec}, crds["LLMInferenceService"])


@needs_kubectl
def test_the_members_base_fits_the_real_schema(crds):
    jsonschema.validate(config(), crds["LLMInferenceServiceConfig"])


@pytest.mark.parametrize("place", ["spec", "router", "route"])
def test_the_real_schema_knows_no_other_field(crds, place):
    route = {"group": "g", "weight": 1, **({"weights": 1} if place == "route" else {})}
    router = {"route": route, **({"routes": {}} if place == "router" else {})}
    spec = {**MEMBER["spec"], "router": router, **({"replica": 1} if place == "spec" else {})}
    with pytest.raises(jsonschema.ValidationError, match="was unexpected"):
        jsonschema.validate({**MEMBER, "spec": spec}, crds["LLMInferenceService"])
