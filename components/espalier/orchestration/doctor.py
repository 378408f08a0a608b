"""Checks of the installation and the machine, each with a remedy."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
import timeit
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from espalier.cluster.kubernetes_api import (
    ApiRetries,
    KubernetesApi,
    cluster_configuration,
    create,
    object_path,
)
from espalier.config import Profile
from espalier.extras import DISTRIBUTION, install_command, requirements
from espalier.records import EspalierError, RegistryError

KFP_VARIABLE = "KF_PIPELINES_ENDPOINT"
_MIN_FREE_GB, _MIN_MEMORY_GB = 2.0, 4.0
"""Disk and memory for a laptop run with its tracking database, which has a copy of the policy."""
_TIMEOUT_S = 5.0
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_WORTH_A_CHANGE = 1.2
"""Least speed-up of matrix products for which a setting is advised."""
_PRODUCT = (128, 1024, 1024)  # a short row, and widths of a small language model
_PRODUCTS_S = 0.1
"""Seconds for which a product is repeated; a single one without bfloat16 units takes longer."""
_PURPOSES = {
    "cluster": "the services of k8s/",
    "ray": "clusters of Ray",
    "vllm": "a model in the process of a stage",
}
"""Extra that `espalier run` does not need -> its purpose."""
_TOOLS = {
    ("chromium", "chromium-browser", "google-chrome"): "looking at reports in the tests",
    ("bwrap",): "local sandboxes",
    ("podman", "docker"): "container sandboxes and images",
    ("runsc",): "gVisor sandboxes",
    ("kubectl",): "the cluster overlays in k8s/",
}


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    state: Literal["ok", "absent", "broken"]
    """`absent`: not needed on a laptop; `broken`: `espalier run` cannot work."""
    found: str
    remedy: str = ""


def examine(runs_dir: Path, profile: Profile | None = None) -> list[Finding]:
    """Run every check, without changing or starting anything.

    Args:
        runs_dir: directory for runs.
        profile: names the account of a Kubeflow run's pods; None checks none.
    """
    parts: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _torch,
        _profiles,
        lambda: _machine(runs_dir),
        lambda: _tracking(runs_dir),
        _kubeflow,
        lambda: iter(()) if profile is None else _kubeflow_account(profile),
        _tools,
    )
    return [finding for part in parts for finding in part()]


def _python() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    required = requirements()
    if not required:
        yield Finding(DISTRIBUTION, "broken", "not installed", "pip install it, or make install")
    for requirement in required:
        name, extra = requirement
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            if extra is None:
                yield Finding(name, "broken", "not installed", f"pip install {name}")
            elif extra == "train":
                remedy = f"to run stages: {install_command(extra)}"
                yield Finding(name, "broken", "not installed", remedy)
            else:
                remedy = f"only for {_PURPOSES[extra]}: {install_command(extra)}"
                yield Finding(name, "absent", "not installed", remedy)


def _torch() -> Iterator[Finding]:
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        yield Finding("torch", "broken", f"does not import: {error}", "install torch again")
        return
    device = "CUDA" if torch.cuda.is_available() else "no GPU (none is needed)"
    yield Finding("torch threads", "ok", f"{torch.get_num_threads()}, {device}")
    yield _matrix_products(torch)


def _matrix_products(torch: ModuleType) -> Finding:
    """Speed of matrix products on this machine, with advice about threads and precision.

    Runs do not follow it automatically: their results would then depend on the machine's load.
    """
    cores = torch.get_num_threads()
    float32, one_thread, bfloat16 = (
        gigaflops(torch, kind, threads)
        for kind, threads in (("float32", cores), ("float32", 1), ("bfloat16", cores))
    )
    found = (
        f"on the CPU {float32:.0f} GFLOPS in float32 with {cores} threads, "
        f"{one_thread:.0f} with 1, {bfloat16:.0f} in bfloat16"
    )
    advice: list[str] = []
    if cores > 1 and float32 < _WORTH_A_CHANGE * one_thread:
        advice.append("threads = 1 in the profile: more are not faster here")
    if bfloat16 > _WORTH_A_CHANGE * float32:
        advice.append('[hardware] precision = "bfloat16" is faster here, "auto" takes float32')
    return Finding("matrix products", "ok", found, "; ".join(advice))


def gigaflops(torch: ModuleType, kind: str, threads: int) -> float:
    """Speed of a matrix product on the CPU in GFLOPS, the fastest of several."""
    rows, read, written = _PRODUCT
    one = torch.ones(rows, read, dtype=getattr(torch, kind))
    other = torch.ones(read, written, dtype=one.dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    timer = timeit.Timer(lambda: torch.mm(one, other))
    try:
        timer.timeit(1)  # the first product is slow
        took_s = [timer.timeit(1)]
        while sum(took_s) < _PRODUCTS_S:
            took_s.append(timer.timeit(1))
    finally:
        torch.set_num_threads(before)
    return 2 * rows * read * written / min(took_s) / 1e9


def _profiles() -> Iterator[Finding]:
    from espalier.steps.profiles import named_profile, profile_names

    try:
        names = profile_names()
        for name in names:
            named_profile(name)
        yield Finding("profiles", "ok", ", ".join(names))
    except EspalierError as error:
        yield Finding("profiles", "broken", str(error), "correct the profile, or install again")


def _machine(runs_dir: Path) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    yield Finding("machine", "ok", f"{cores} cores, {platform.platform()}, as {user}")
    free_gb = shutil.disk_usage(_existing(runs_dir)).free / 2**30
    yield _enough("free disk", free_gb, _MIN_FREE_GB, "free space, or give --runs another disk")
    meminfo = Path("/proc/meminfo")
    told = meminfo.read_text() if meminfo.exists() else ""
    available = re.search(r"MemAvailable:\s+(\d+) kB", told)
    if available:
        memory_gb = int(available.group(1)) / 2**20
        yield _enough("free memory", memory_gb, _MIN_MEMORY_GB, "close other programs")
    if not os.access(_existing(runs_dir), os.W_OK):
        yield Finding("runs", "broken", f"{runs_dir}: not writable", "give another --runs")


def _enough(name: str, have_gb: float, want_gb: float, remedy: str) -> Finding:
    if have_gb >= want_gb:
        return Finding(name, "ok", f"{have_gb:.1f} GiB")
    return Finding(name, "broken", f"{have_gb:.1f} GiB, a run needs {want_gb:g} GiB", remedy)


def _tracking(runs_dir: Path) -> Iterator[Finding]:
    from espalier.registry.connection import connect

    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None:
        yield Finding("MLflow", "ok", f"MLFLOW_TRACKING_URI unset: sqlite in {runs_dir}/mlflow.db")
        return
    try:
        connect(uri)
        yield Finding("MLflow", "ok", f"answers at {uri}")
    except RegistryError as error:
        yield Finding("MLflow", "broken", str(error), "start it, or unset MLFLOW_TRACKING_URI")


def _kubeflow() -> Iterator[Finding]:
    endpoint = os.environ.get(KFP_VARIABLE)
    if endpoint is None:
        remedy = f"only to submit runs to a cluster: set {KFP_VARIABLE}=http://host"
        yield Finding("Kubeflow", "absent", "no endpoint set", remedy)
        return
    url = f"{endpoint.rstrip('/')}/apis/v2beta1/healthz"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            yield Finding("Kubeflow", "ok", f"{endpoint} answers {answer.status}")
    except (urllib.error.URLError, OSError, ValueError) as error:
        remedy = f"start it, or correct {KFP_VARIABLE}"
        yield Finding("Kubeflow", "absent", f"{endpoint}: {error}", remedy)


def rights_of_steps(profile: Profile) -> dict[tuple[str, str, str], str]:
    """Rights of the account of a Kubeflow run's pods: (namespace, group, kind) -> verbs.

    k8s/kubeflow grants them to espalier-kubeflow; of one object its name stands after its kind.
    """
    cluster = profile.kubernetes
    own, sandboxes = cluster.kubeflow.namespace or cluster.pipeline_namespace, cluster.sandboxes
    rights = {
        # without it a step's program succeeds, but Argo's container `wait` fails with Unauthorized
        (own, "argoproj.io", "workflowtaskresults"): "create patch",
        (own, "", "configmaps kfp-launcher"): "get",
    }
    if cluster.trainer != "job":
        rights[own, "", "pods"] = "get"
    if cluster.trainer == "rayjob":
        rights[own, "ray.io", "rayjobs"] = "create delete get"
    if cluster.trainer == "trainjob":
        rights[own, "trainer.kubeflow.org", "trainjobs"] = "create delete get"
    if getattr(getattr(profile.environment, "sandbox", None), "backend", "") == "kubernetes":
        place = cluster.sandbox_namespace
        rights[place, "", "pods"] = "create delete get list watch"
        rights[place, "coordination.k8s.io", "leases"] = "create delete get patch"
        if sandboxes.agent_sandbox == "always":
            for kind in ("sandboxtemplates", "sandboxwarmpools", "sandboxclaims"):
                rights[place, "extensions.agents.x-k8s.io", kind] = "create delete get list watch"
    return rights


def _kubeflow_account(profile: Profile) -> Iterator[Finding]:
    """Whether the account of a run's pods exists, has a token, and may do what steps do."""
    kubeflow = profile.kubernetes.kubeflow
    namespace = kubeflow.namespace or profile.kubernetes.pipeline_namespace
    usual = "default-editor" if kubeflow.namespace else "pipeline-runner"  # Kubeflow's own
    account = kubeflow.service_account or usual
    name, shown = "account of steps", f"{namespace}/{account}"
    try:
        api = KubernetesApi(cluster_configuration(os.environ.get("KUBECONFIG")), ApiRetries())
        found = api.find(object_path("v1", "serviceaccounts", namespace, account))
        missing = [] if found is None else _missing_rights(api, profile, namespace, account)
    except EspalierError as error:
        remedy = "set KUBECONFIG to a user that may create subjectaccessreviews"
        yield Finding(name, "absent", f"{shown} was not checked: {error}", remedy)
        return
    remedy = "apply k8s/kubeflow and set kubernetes.kubeflow.service_account"
    if found is None:
        yield Finding(name, "absent", f"{shown} does not exist", remedy)
    elif found.get("automountServiceAccountToken") is False:
        yield Finding(name, "absent", f"{shown} mounts no token into the pods of a run", remedy)
    elif missing:
        yield Finding(name, "absent", f"{shown} may not {'; '.join(missing)}", remedy)
    else:
        yield Finding(name, "ok", f"{shown} may do what the steps of {profile.name} do")


def _missing_rights(
    api: KubernetesApi, profile: Profile, namespace: str, account: str
) -> list[str]:
    user = f"system:serviceaccount:{namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    missing = []
    for (place, group, kind), verbs in rights_of_steps(profile).items():
        plural, _, single = kind.partition(" ")
        for verb in verbs.split():
            asked = {"namespace": place, "group": group, "resource": plural, "verb": verb}
            asked |= {"name": single} if single else {}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "groups": groups, "resourceAttributes": asked},
            }
            answer = api.send(create(_REVIEWS, review, f"ask what {user} may do"))
            if not answer.get("status", {}).get("allowed"):
                missing.append(f"{verb} {kind} in {place}")
    return missing


def _tools() -> Iterator[Finding]:
    for names, purpose in _TOOLS.items():
        path = next((found for name in names if (found := shutil.which(name))), None)
        if path:
            yield Finding(names[0], "ok", path)
        else:
            yield Finding(names[0], "absent", "not found", f"only for {purpose}")


def _existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists."""
    path = path.resolve()
    return path if path.exists() else _existing(path.parent)
