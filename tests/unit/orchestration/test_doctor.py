import json
from types import SimpleNamespace

import pytest

from espalier.config import KubeflowConfig, KubernetesConfig, Profile
from espalier.orchestration import doctor
from espalier.orchestration.doctor import examine, rights_of_steps
from tests.fakes.cluster_stand_in import write_kubeconfig
from tests.fakes.loopback import Handler, Server, serving
from tests.unit.k8s.allowed_verbs import KUBEFLOW_VERBS, PIPELINE


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_a_whole_installation_has_nothing_broken_in_its_packages(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(doctor.KFP_VARIABLE, raising=False)
    found = by_name(examine(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    for name in ("python", "torch", "torch threads", "mlflow", "kfp", "profiles", "MLflow"):
        assert found[name].state == "ok", found[name]
    assert found["Kubeflow"].state == "absent"
    assert doctor.KFP_VARIABLE in found["Kubeflow"].remedy


def test_an_absent_server_and_a_small_disk_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv(doctor.KFP_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**29))
    found = by_name(examine(tmp_path))
    states = {name: found[name].state for name in ("MLflow", "Kubeflow", "free disk")}
    assert states == {"MLflow": "broken", "Kubeflow": "absent", "free disk": "broken"}
    assert "http://127.0.0.1:9" in found["MLflow"].found
    assert "0.5 GiB" in found["free disk"].found
    assert found["Kubeflow"].remedy


class Reviewing(Handler):
    """An API server that knows one account, and what k8s/kubeflow lets it do."""

    def do_GET(self):
        server = self.server
        known = self.path == f"/api/v1/namespaces/{PIPELINE}/serviceaccounts/espalier-kubeflow"
        there = {"automountServiceAccountToken": server.mounts_token, "metadata": {}}
        self.say(*((200, there) if known else (404, {"message": "not found"})))

    def do_POST(self):
        asked = json.loads(self.read_body())["spec"]
        if self.server.status != 201:
            self.say(self.server.status, {"message": "subjectaccessreviews is forbidden"})
            return
        what = asked["resourceAttributes"]
        kind = what["resource"] + (f" NAME:{what['name']}" if "name" in what else "")
        verbs = self.server.rights.get((what["namespace"], what["group"], kind), "")
        is_ours = asked["user"] == f"system:serviceaccount:{PIPELINE}:espalier-kubeflow"
        self.say(201, {"status": {"allowed": is_ours and what["verb"] in verbs.split()}})


OURS = KubeflowConfig(namespace=PIPELINE, service_account="espalier-kubeflow")
EVERYTHING = KubernetesConfig(kubeflow=OURS, trainer="trainjob")


@pytest.fixture
def reviewing(tmp_path, monkeypatch):
    server = Server(Reviewing)
    server.mounts_token, server.status = True, 201
    server.rights = dict(KUBEFLOW_VERBS["espalier-kubeflow"])
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server.server_port)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with serving(server):
        yield server


def account(settings=EVERYTHING, environment=None):
    profile = Profile(name="mine").model_copy(update={"kubernetes": settings})
    if environment is not None:
        profile = profile.model_copy(update={"environment": environment})
    (found,) = doctor._kubeflow_account(profile)
    return found


IN_PODS = SimpleNamespace(sandbox=SimpleNamespace(backend="kubernetes"))


def test_our_account_may_do_all_that_steps_do(reviewing):
    for settings in (EVERYTHING, EVERYTHING.model_copy(update={"trainer": "rayjob"})):
        assert account(settings, IN_PODS).state == "ok"


def _lose(key, verbs):
    def change(server):
        server.rights[key] = verbs

    return change


def _mount_nothing(server):
    server.mounts_token = False


def _forbid_asking(server):
    server.status = 403


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_lose((PIPELINE, "argoproj.io", "workflowtaskresults"), "create"),
         f"may not patch workflowtaskresults in {PIPELINE}"),
        (_lose((PIPELINE, "", "configmaps NAME:kfp-launcher"), ""), "get configmaps kfp-launcher"),
        (_lose((PIPELINE, "trainer.kubeflow.org", "trainjobs"), "get"), "create trainjobs"),
        (_lose(("espalier-sandboxes", "", "pods"), "get list"), "watch pods in espalier-sandboxes"),
        (_lose(("espalier-sandboxes", "coordination.k8s.io", "leases"), ""), "create leases"),
        (_mount_nothing, "mounts no token"),
        (_forbid_asking, "not checked"),
    ],
)  # fmt: skip
def test_a_right_that_steps_lack_under_kubeflow_is_named(reviewing, change, said):
    """A run's programs end well, and Argo's container `wait` with Unauthorized.

    So kubeflow/community-distribution#3445.
    """
    change(reviewing)
    found = account(environment=IN_PODS)
    assert (found.state, bool(found.remedy)) == ("absent", True)
    assert said in found.found


def test_an_account_that_is_not_there_is_named(reviewing, monkeypatch):
    editor = KubernetesConfig(kubeflow=KubeflowConfig(namespace=PIPELINE))
    assert f"{PIPELINE}/default-editor does not exist" in account(editor).found
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "no cluster configured" in account().found


def test_a_plain_run_needs_few_rights():
    wanted = rights_of_steps(Profile())
    assert {kind for _, _, kind in wanted} == {"workflowtaskresults", "configmaps kfp-launcher"}
