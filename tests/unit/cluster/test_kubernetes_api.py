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


def unshortened(retries):
    return replace(retries, jitter=lambda: 1.0)


def test_each_client_waits_as_long_as_it_may(server, pauses):
    server.script = [(503, {})] * 99
    with pytest.raises(ApiError, match="given up"):
        blocking(server, unshortened(launching.RETRIES)).send(read(PODS))
    assert pauses[:6] == [0.5, 1, 2, 4, 8, 15]
    assert set(pauses[6:]) == {15}
    assert 585 < sum(pauses) <= 600
    pauses.clear()
    with pytest.raises(ApiError, match="given up"):
        asked(server, read(PODS), unshortened(api_server.RETRIES))
    assert pauses == [0.25, 0.5, 1, 2, 4, 8]
    pauses.clear()
    with pytest.raises(ApiError, match="503"):
        blocking(server, workload.RETRIES).send(read(PODS))
    assert pauses == [], "the serving controller asks once"


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
def test_pauses_are_shortened_by_up_to_half_at_random(chance):
    retries = ApiRetries(first_pause_s=1.0, longest_pause_s=10.0, jitter=lambda: chance)
    pauses = [retries.pause_s(failures, None) for failures in (1, 2, 4, 5, 10_000)]
    assert pauses == [full * (0.5 + chance / 2) for full in (1, 2, 8, 10, 10)]


@pytest.mark.parametrize(
    ("header", "pause_s"), [("7", 7.0), ("86400", 60.0), ("-5", 0.25), ("soon", 0.25)]
)
def test_a_server_that_asks_for_a_pause_gets_it(server, pauses, header, pause_s):
    server.script = [(429, {}, {"Retry-After": header})]
    asked(server, read(PODS), ApiRetries(attempts=2, jitter=lambda: 1.0))
    assert pauses == [pause_s]


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


def test_sandbox_requests_retry_conflicts_but_no_creation(server, pauses):
    server.script = [(409, {}), (200, {"kind": "X"}), (503, {})]
    asked(server, merge(f"{PODS}/p", {}), api_server.RETRIES)
    assert len(server.seen) == 2
    with pytest.raises(ApiError, match="503"):
        asked(server, create(PODS, {"metadata": {"name": "p"}}), api_server.RETRIES)
    assert len(server.seen) == 3


def test_an_unreachable_server_is_transient_and_shows_no_token(caplog):
    away = SimpleNamespace(address="http://127.0.0.1:9")
    retries = unshortened(ApiRetries(attempts=2, first_pause_s=0.01))
    with caplog.at_level(logging.DEBUG), pytest.raises(ApiError) as caught:
        blocking(away, retries).send(read(PODS, "list the pods"))
    assert "list the pods" in str(caught.value)
    assert caught.value.is_transient
    assert "0.01 s" in caplog.text
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
        assert server.seen[-1][2]["Authorization"] == f"Bearer {token}"


DELETION = b'{"propagationPolicy": "Background", "preconditions": {"uid": "7"}}'
SERVER_SIDE = ("PATCH", "fieldManager=me&force=true", "application/apply-patch+yaml", b"{}")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (read(PODS, labelSelector="a=b"), ("GET", "labelSelector=a%3Db", None, b"")),
        (delete(PODS, uid="7"), ("DELETE", "", "application/json", DELETION)),
        (merge(PODS, {}), ("PATCH", "", "application/merge-patch+json", b"{}")),
        (apply(PODS, {}, manager="me"), SERVER_SIDE),
    ],
)
def test_requests_have_the_apis_form(server, request_, expected):
    blocking(server).send(request_)
    ((method, target, headers, body),) = server.seen
    path, _, query = target.partition("?")
    assert path == PODS
    assert (method, query, headers.get("Content-Type"), body) == expected


def owned_by(uid):
    owners = [{"uid": uid}] if uid else []
    return {"metadata": {"name": "p", "namespace": "one", "ownerReferences": owners}}


@pytest.mark.parametrize(
    ("present", "is_ours"),
    [
        ((200, owned_by("mine")), True),
        ((200, owned_by("other")), False),
        ((200, owned_by("")), False),
        ((404, {}), False),
    ],
)
def test_only_an_object_of_the_same_owner_is_adopted(server, present, is_ours):
    server.script = [(409, {}), present]
    api, ours = blocking(server), owned_by("mine")
    if is_ours:
        assert api.create_or_adopt(PODS, ours, "Pod") == ours
    else:
        with pytest.raises(ClusterError, match="another owner"):
            api.create_or_adopt(PODS, ours, "Pod")


def test_a_delete_returns_whether_the_object_existed(server):
    server.script = [(200, {"kind": "X"}), (404, {}), (409, {}), (403, {})]
    one = delete(f"{PODS}/p", uid="1")
    assert [blocking(server).discard(one) for _ in range(3)] == [True, False, False]
    with pytest.raises(ApiError, match="403"):
        blocking(server).discard(one)


@pytest.mark.parametrize("kubeconfig", [None, "", "no/such/file"])
def test_without_token_or_cluster_the_remedy_is_named(kubeconfig, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="KUBECONFIG"):
        cluster_configuration(kubeconfig)
    if not kubeconfig:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        with pytest.raises(ClusterError, match="automountServiceAccountToken"):
            cluster_configuration(kubeconfig)
