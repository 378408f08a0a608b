import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kubernetes.client import Configuration

from espalier.cluster import launching
from espalier.cluster.kubernetes_api import (
    ApiError,
    ApiRetries,
    AsyncKubernetesApi,
    KubernetesApi,
    apply,
    cluster_configuration,
    create,
    delete,
    merge,
    object_path,
    read,
)
from espalier.records import ClusterError
from espalier.sandbox import api_server
from espalier.serving import workload
from tests.fakes.loopback import Handler, Server, serving

PODS = object_path("v1", "pods", "one")
TRANSIENT = [429, 500, 502, 503, 504]
LASTING = [400, 401, 403, 404, 409, 410, 422]


class _Scripted(Handler):
    def _answer(self):
        body = self.read_body()
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        answer = self.server.script.pop(0) if self.server.script else (200, {"kind": "X"})
        status, content, *headers = answer
        self.say(status, content, *headers)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer


@pytest.fixture
def server():
    """An API server that answers as `script` says, and then with an object."""
    server = Server(_Scripted)
    server.script, server.seen = [], []
    with serving(server):
        yield server


def settings(server, token="a-token"):
    found = Configuration(host=server.address)
    found.api_key = {"authorization": f"Bearer {token}"}
    return found


def blocking(server, retries=None):
    return KubernetesApi(settings(server), retries or ApiRetries())


def asked(server, request, retries=None):
    """One request of the asynchronous client."""

    async def main():
        api = AsyncKubernetesApi(settings(server), retries or ApiRetries())
        try:
            return await api.send(request)
        finally:
            await api.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("v1", "pods", "one"), "/api/v1/namespaces/one/pods"),
        (("apps/v1", "deployments", "a", "b"), "/apis/apps/v1/namespaces/a/deployments/b"),
    ],
)
def test_paths_of_core_and_grouped_kinds(parts, path):
    assert object_path(*parts) == path


def unshortened(retries):
    return replace(retries, jitter=lambda: 1.0)


def test_launching_wait_ten_minutes_with_growing_pauses(server, pauses):
    server.script = [(503, {})] * 99
    with pytest.raises(ApiError, match=r"given up after \d+ attempts in 5\d\d s"):
        blocking(server, unshortened(launching.RETRIES)).send(read(PODS))
    assert pauses[:6] == [0.5, 1, 2, 4, 8, 15]
    assert set(pauses[6:]) == {15}
    assert 585 < sum(pauses) <= 600


def test_sandbox_requests_are_tried_seven_times(server, pauses):
    server.script = [(503, {})] * 99
    with pytest.raises(ApiError, match="given up after 7 attempts"):
        asked(server, read(PODS), unshortened(api_server.RETRIES))
    assert pauses == [0.25, 0.5, 1, 2, 4, 8]


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
def test_pauses_are_shortened_by_up_to_half_at_random(chance):
    retries = ApiRetries(first_pause_s=1.0, longest_pause_s=10.0, jitter=lambda: chance)
    pauses = [retries.pause_s(failures, None) for failures in (1, 2, 4, 5, 10_000)]
    assert pauses == [full * (0.5 + chance / 2) for full in (1, 2, 8, 10, 10)]


def test_clients_that_fail_together_come_back_apart():
    retries = ApiRetries(first_pause_s=1.0)
    assert len({retries.pause_s(3, None) for _ in range(50)}) > 40


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [("7", 7.0), ("86400", 60.0), ("0", 0.25), ("-5", 0.25), ("soon", 0.25), (None, 0.25)],
)
def test_a_server_that_asks_for_a_pause_gets_it(server, pauses, header, pause_s):
    server.script = [(429, {}, {"Retry-After": header} if header else {})]
    asked(server, read(PODS), ApiRetries(attempts=2, jitter=lambda: 1.0))
    assert pauses == [pause_s]


def test_the_serving_controller_asks_once(server, pauses):
    server.script = [(503, {})] * 99
    with pytest.raises(ApiError, match=r"HTTP 503 Service Unavailable$"):
        blocking(server, workload.RETRIES).send(read(PODS))
    assert (pauses, len(server.seen)) == ([], 1)


@pytest.mark.parametrize("status", TRANSIENT + LASTING)
def test_only_transient_failures_are_retried(server, pauses, status):
    server.script = [(status, {"message": "no"})]
    retries = ApiRetries(attempts=2)
    if status in TRANSIENT:
        assert blocking(server, retries).send(read(PODS)) == {"kind": "X"}
    else:
        with pytest.raises(ApiError, match=f"HTTP {status} .*: no$") as caught:
            blocking(server, retries).send(read(PODS))
        assert caught.value.status == status
    assert len(pauses) == (status in TRANSIENT)


def test_sandbox_requests_retry_conflicts_as_well(server, pauses):
    server.script = [(409, {})]
    asked(server, merge(f"{PODS}/p", {}), api_server.RETRIES)
    assert len(server.seen) == 2


def test_an_asynchronous_create_is_sent_once(server, pauses):
    server.script = [(503, {})]
    with pytest.raises(ApiError, match="503"):
        asked(server, create(PODS, {"metadata": {"name": "p"}}), api_server.RETRIES)
    assert len(server.seen) == 1


def test_an_unreachable_server_is_transient_and_shows_no_token(caplog):
    away = SimpleNamespace(address="http://127.0.0.1:9")
    with caplog.at_level(logging.DEBUG), pytest.raises(ApiError) as caught:
        blocking(away, unshortened(ApiRetries(attempts=2, first_pause_s=0.01))).send(
            read(PODS, "list the pods")
        )
    assert "could not list the pods: the API server does not answer" in str(caught.value)
    assert caught.value.is_transient
    assert "next attempt in 0.01 s" in caplog.text
    assert "a-token" not in caplog.text + str(caught.value)


def test_a_web_page_is_refused_as_an_answer(server):
    server.script = [(200, b"<html>log in</html>")]
    with pytest.raises(ApiError, match="no object: is this the address of an API server"):
        blocking(server).send(read(PODS))


def test_every_request_reads_the_credentials_anew(server):
    found = settings(server)
    api = KubernetesApi(found, ApiRetries())
    for token in ("old", "new"):
        found.api_key["authorization"] = f"Bearer {token}"
        api.send(read(PODS))
    assert [headers["Authorization"] for _, _, headers, _ in server.seen] == [
        "Bearer old",
        "Bearer new",
    ]


@pytest.mark.parametrize(
    ("request_", "method", "query", "content_type", "body"),
    [
        (read(PODS, labelSelector="a=b"), "GET", "labelSelector=a%3Db", None, b""),
        (
            delete(PODS, uid="7"),
            "DELETE",
            "",
            "application/json",
            b'{"propagationPolicy": "Background", "preconditions": {"uid": "7"}}',
        ),
        (merge(PODS, {}), "PATCH", "", "application/merge-patch+json", b"{}"),
        (
            apply(PODS, {}, manager="me"),
            "PATCH",
            "fieldManager=me&force=true",
            "application/apply-patch+yaml",
            b"{}",
        ),
    ],
)
def test_requests_have_the_apis_form(server, request_, method, query, content_type, body):
    blocking(server).send(request_)
    sent = server.seen[0]
    path, _, asked_for = sent[1].partition("?")
    assert (sent[0], path, asked_for, sent[3]) == (method, PODS, query, body)
    assert sent[2].get("Content-Type") == content_type


def owned_by(uid):
    owners = [{"uid": uid}] if uid else []
    return {"metadata": {"name": "p", "namespace": "one", "ownerReferences": owners}}


def test_an_object_of_the_same_owner_is_adopted(server):
    server.script = [(409, {}), (200, owned_by("mine"))]
    assert blocking(server).create_or_adopt(PODS, owned_by("mine"), "Pod") == owned_by("mine")


@pytest.mark.parametrize("present", [(404, {}), (200, owned_by("other")), (200, owned_by(""))])
def test_an_object_of_another_owner_is_refused(server, present):
    server.script = [(409, {}), present]
    with pytest.raises(ClusterError, match="a Pod one/p of another owner"):
        blocking(server).create_or_adopt(PODS, owned_by("mine"), "Pod")


@pytest.mark.parametrize(("status", "was_there"), [(200, True), (404, False), (409, False)])
def test_a_delete_returns_whether_the_object_existed(server, status, was_there):
    server.script = [(status, {})]
    assert blocking(server).discard(delete(f"{PODS}/p", uid="1")) is was_there


def test_a_refused_delete_is_an_error(server):
    server.script = [(403, {})]
    with pytest.raises(ApiError, match="403"):
        blocking(server).discard(delete(f"{PODS}/p"))


@pytest.mark.parametrize("kubeconfig", [None, ""])
def test_a_pod_without_a_token_says_what_to_do(kubeconfig, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ClusterError, match=r"^no service-account token in this pod: ") as caught:
        cluster_configuration(kubeconfig)
    assert "automountServiceAccountToken: true" in str(caught.value)
    assert "Kubeflow" in str(caught.value)


@pytest.mark.parametrize("kubeconfig", [None, "", "no/such/file"])
def test_without_a_cluster_the_error_names_kubeconfig(kubeconfig, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="set KUBECONFIG"):
        cluster_configuration(kubeconfig)


def test_total_time_allows_any_number_of_attempts(server, pauses):
    server.script = [(503, {})] * 20
    retries = replace(launching.RETRIES, longest_pause_s=0.5)
    assert blocking(server, retries).send(read(PODS)) == {"kind": "X"}
    assert len(pauses) == 20
