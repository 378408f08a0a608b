import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from espalier.records import ClusterError
from espalier.sandbox.garbage import collect, find_garbage, main
from espalier.sandbox.lease import DURATION_S, renewed, run_lease
from espalier.sandbox.pod import TTL_LABEL
from tests.fakes.cluster_stand_in import write_kubeconfig
from tests.fakes.loopback import Handler, Server, serving

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
NAMESPACE = "espalier-sandboxes"


def _lease(age_s, name="r17-sandboxes"):
    lease = run_lease(
        name.removesuffix("-sandboxes"),
        namespace=NAMESPACE,
        holder="trainer",
        now=NOON - timedelta(seconds=age_s),
        labels={},
    )
    lease["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "7"}
    return lease


def _pod(age_s, name="s0", phase="Running", ttl="600", **metadata):
    created = (NOON - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {TTL_LABEL: ttl} if ttl else {}
    return {
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "9",
            "creationTimestamp": created, "labels": labels, **metadata,
        },
        "status": {"phase": phase},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("age_s", "is_garbage"),
    [(0, False), (DURATION_S, False), (DURATION_S + 59, False), (181, True)],
)
def test_a_lease_is_garbage_a_minute_after_it_expired(age_s, is_garbage):
    assert bool(find_garbage([_lease(age_s)], [], NOON).leases) is is_garbage


def test_a_lease_counts_from_its_renewal_else_from_its_creation():
    lease = _lease(5000)
    lease["spec"] |= renewed(NOON)["spec"]
    assert find_garbage([lease], [], NOON).leases == []
    del lease["spec"]["renewTime"]
    lease["metadata"]["creationTimestamp"] = "2026-03-04T11:00:00Z"
    assert find_garbage([lease], [], NOON).leases == [lease]


@pytest.mark.parametrize(
    ("pod", "is_garbage"),
    [
        (_pod(10), False),
        (_pod(659), False),
        (_pod(661), True),
        (_pod(10, phase="Failed"), True),
        (_pod(10, phase="Succeeded"), True),
        (_pod(10, phase="Pending"), False),
        (_pod(9999, ttl=""), False),
        (_pod(9999, deletionTimestamp="2026-03-04T11:59:00Z"), False),
    ],
)
def test_an_ended_or_overdue_pod_is_garbage(pod, is_garbage):
    assert bool(find_garbage([], [pod], NOON).pods) is is_garbage


@pytest.fixture
def api(tmp_path):
    """Starts an API server of these objects that refuses with the status in `refusals`.

    Yields its configuration and what is deleted.
    """

    @contextmanager
    def started(leases, pods, refusals=()):
        deleted, refused = [], dict(refusals)

        class Api(Handler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                assert query == "labelSelector=app.kubernetes.io%2Fname%3Despalier-sandbox"
                self.say(200, {"items": leases if path.endswith("/leases") else pods})

            def do_DELETE(self):
                body = json.loads(self.read_body())
                status = refused.get(self.path.rpartition("/")[2], 200)
                if status == 200:
                    deleted.append((self.path, body))
                self.say(status, {})

        with serving(Server(Api)) as server:
            yield write_kubeconfig(tmp_path / "kubeconfig", server.server_port), deleted

    return started


def test_garbage_is_deleted_and_named_and_the_rest_stays(api, capsys):
    leases = [_lease(999), _lease(1, "r18-sandboxes")]
    pods = [_pod(1), _pod(1, "s1", phase="Failed")]
    with api(leases, pods) as (kubeconfig, deleted):
        collect(NAMESPACE, NOON, kubeconfig=kubeconfig)
    assert [path for path, _ in deleted] == [
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/r17-sandboxes",
        f"/api/v1/namespaces/{NAMESPACE}/pods/s1",
    ]
    judged = [body["preconditions"] for _, body in deleted]
    assert judged == [
        {"uid": "uid-r17-sandboxes", "resourceVersion": "7"},
        {"uid": "uid-s1", "resourceVersion": "9"},
    ]
    with api([], [_pod(1, "s9", phase="Failed")]) as (kubeconfig, _):
        main(["--namespace", NAMESPACE, "--kubeconfig", str(kubeconfig)])
    assert f"{NAMESPACE}/s9" in capsys.readouterr().out


@pytest.mark.parametrize("status", [404, 409])
def test_a_concurrent_deletion_does_not_stop_the_collection(api, status):
    refusals = {"r17-sandboxes": status}
    with api([_lease(999)], [_pod(9999)], refusals) as (kubeconfig, deleted):
        collect(NAMESPACE, NOON, kubeconfig=kubeconfig)
    assert [path.rpartition("/")[2] for path, _ in deleted] == ["s0"]


def test_a_refusal_is_an_error(api):
    refusing = api([_lease(999)], [], {"r17-sandboxes": 403})
    with refusing as (kubeconfig, _), pytest.raises(ClusterError, match="403"):
        collect(NAMESPACE, NOON, kubeconfig=kubeconfig)
