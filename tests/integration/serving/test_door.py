"""Who is let in: API keys, TLS, and what is checked before the endpoint listens."""

import os
import resource
import socket
import ssl
import time

import pytest

from espalier.config import ServingConfig
from espalier.records import ServingError
from espalier.serving import server
from espalier.serving.server import Door, opened_door
from espalier.serving.tls import TlsFiles
from espalier.wire.keys import KEYS_VARIABLE, ApiKeys, new_key
from tests.factories.certificates import certificate
from tests.integration.commands import espalier, espalier_here
from tests.integration.serving.live import PacedEngine, listening_endpoint, lockstep
from tests.integration.waiting import wait_until

TEXT = "/v1/completions"
ASKED = {"model": "tiny", "prompt": [20, 21], "max_tokens": 2}


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    return path, new_key("alice", path)


def bearing(key):
    return {"authorization": f"Bearer {key}"}


def test_nothing_is_answered_without_a_key_but_probes(keys):
    path, key = keys
    with (
        listening_endpoint(PacedEngine(), door=Door(ApiKeys.open(path, {}))) as client,
        socket.create_connection((client.base_url.host, client.base_url.port), 5) as line,
    ):
        for wrong in ({}, bearing("esp-wrong"), {"authorization": key}, bearing("\xff")):
            for method, asked in (("POST", TEXT), ("GET", "/v1/models"), ("GET", "/nowhere")):
                encoded = {k: v.encode("latin-1") for k, v in wrong.items()}
                answer = client.request(method, asked, headers=encoded, json=ASKED)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (401, "invalid_api_key")
                assert "esp-" not in answer.text
        for asked in ("/healthz", "/readyz", "/health", "/metrics"):
            assert client.get(asked).status_code == 200
        assert client.post(TEXT, headers=bearing(key), json=ASKED).status_code == 200
        assert 'status="401"' in client.get("/metrics").text
        assert key not in client.get("/metrics").text
        # before its body
        line.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_health_and_metrics_can_be_guarded_too(keys):
    path, key = keys
    door = Door(ApiKeys.open(path, {}))
    with listening_endpoint(PacedEngine(), door=door, guard_health=True) as client:
        for asked, status in (("/health", 401), ("/metrics", 401), ("/healthz", 200)):
            assert client.get(asked).status_code == status
            assert client.get(asked, headers=bearing(key)).status_code == 200


def test_keys_that_are_added_or_removed_later_count(keys, monkeypatch):
    monkeypatch.setattr(server, "_REFRESH_S", 0.05)
    path, alice = keys
    with listening_endpoint(PacedEngine(token_s=0), door=Door(ApiKeys.open(path, {}))) as client:

        def status(key):
            return client.get("/v1/models", headers=bearing(key)).status_code

        bob = new_key("bob", path)
        wait_until(lambda: status(bob) == 200)
        path.write_text("\n".join(li for li in path.read_text().splitlines() if "bob" in li))
        wait_until(lambda: status(alice) == 401)
        assert status(bob) == 200


def test_a_key_is_made_by_a_command_and_printed_once(tmp_path):
    made = espalier_here("api-key", "alice", "--file", "keys", cwd=tmp_path)
    key = made.stdout.strip()
    assert ApiKeys.open(tmp_path / "keys", {}).owner(key) == "alice"
    assert key not in made.stderr
    again = espalier_here("api-key", "alice", "--file", "keys", cwd=tmp_path)
    assert again.exit_code == 1
    assert "keys" in again.stderr


def test_the_variable_of_keys_leaves_the_environment(keys, monkeypatch):
    path, key = keys
    monkeypatch.setenv(KEYS_VARIABLE, path.read_text())
    assert opened_door(ServingConfig()).keys.owner(key) == "alice"
    assert KEYS_VARIABLE not in os.environ


def test_an_open_endpoint_that_others_reach_is_warned_of(tmp_path):
    def said(host):
        done = espalier_here("serve", "no/such/policy", "--host", host, "--port", "0", cwd=tmp_path)
        return done.stderr

    assert "no API keys" in said("0.0.0.0")
    assert "warning" not in said("127.0.0.1") + said("localhost")


def test_answers_are_the_same_over_tls(tmp_path):
    files = certificate(tmp_path)
    with listening_endpoint(
        lockstep(),
        door=Door(tls=TlsFiles(files.certificate, files.key)),
        verify=ssl.create_default_context(cafile=files.certificate),
        head_timeout_s=0.5,
    ) as client:
        assert client.post(TEXT, json=ASKED).status_code == 200
        streamed = client.post(TEXT, json={**ASKED, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        where = (client.base_url.host, client.base_url.port)
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            # says nothing, or no TLS: closed in time, without an answer in plain text
            with socket.create_connection(where, 5) as line:
                line.settimeout(10)
                line.sendall(sent)
                assert b"HTTP" not in line.recv(4096)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(where, 5) as line,
            pytest.raises(OSError, match=r"SSL|closed|reset"),
        ):
            old.wrap_socket(line)
        assert client.get("/healthz").status_code == 200


def test_silent_handshakes_give_their_places_to_requests(tmp_path):
    files = certificate(tmp_path)
    with listening_endpoint(
        lockstep(),
        door=Door(tls=TlsFiles(files.certificate, files.key)),
        verify=ssl.create_default_context(cafile=files.certificate),
        max_connections=4,
        head_timeout_s=60,
    ) as client:
        where = (client.base_url.host, client.base_url.port)
        lines = [socket.create_connection(where, 5) for _ in range(60)]
        assert client.post(TEXT, json=ASKED).status_code == 200
        for line in lines:
            line.close()


def test_a_renewed_certificate_is_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_REFRESH_S", 0.05)
    files = certificate(tmp_path)
    tls = TlsFiles(files.certificate, files.key)
    with listening_endpoint(PacedEngine(), door=Door(tls=tls), verify=False) as client:
        where = (client.base_url.host, client.base_url.port)
        first = ssl.get_server_certificate(where)
        files.key.write_text("torn")
        time.sleep(0.2)
        assert ssl.get_server_certificate(where) == first
        certificate(tmp_path)
        wait_until(lambda: ssl.get_server_certificate(where) != first)


@pytest.mark.parametrize(
    "fault", ["cannot be read", "is not the key", "expired", "not yet", "PEM", "passphrase"]
)
def test_files_that_no_client_would_trust_are_refused(tmp_path, fault):
    files = certificate(tmp_path)
    match fault:
        case "cannot be read":
            files.key.unlink()
        case "is not the key":
            files.key.write_text(certificate(tmp_path / "other").key.read_text())
        case "expired":
            files = certificate(tmp_path, days=(-10, -1))
        case "not yet":
            files = certificate(tmp_path, days=(1, 10))
        case "PEM":
            files.certificate.write_text("hello")
        case "passphrase":
            files = certificate(tmp_path, passphrase=b"x")
    config = ServingConfig(tls_certificate_file=files.certificate, tls_key_file=files.key)
    with pytest.raises(ServingError, match=fault):
        opened_door(config)


LIMITED = """
import resource
from espalier.config import ServingConfig
from espalier.records import ServingError
from espalier.wire.listening import within_open_files
for connections, hard in ((500, 1000), (2000, 1000), (1, 272)):
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        config = within_open_files(ServingConfig(max_connections=connections), str)
        print(config.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    except ServingError:
        print("refused")
"""


def test_connections_are_as_many_as_open_files_allow():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 1000
    done = espalier(script=LIMITED)
    assert done.stdout.splitlines() == ["500 772", "728 1000", "refused"], done.stderr
