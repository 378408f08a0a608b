"""Keys for the token of a pod's account, from a server that answers as STS does."""

import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from espalier.records import StorageAwayError, StorageError
from espalier.storage import S3Retries
from espalier.storage.requests import S3Requests
from espalier.storage.settings import s3_settings

ARN = "arn:aws:iam::111122223333:role/espalier-runs"
ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>key-{number}</AccessKeyId>
<SecretAccessKey>hush</SecretAccessKey><SessionToken>session-{number}</SessionToken>
<Expiration>{end}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


class Server:
    """STS for POST, and S3 for everything else; both note what they were asked with."""

    def __init__(self, life):
        self.life, self.status = life, 200
        self.asked, self.signed = [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.asked.append(parse_qs(urlsplit(self.path).query))
                end = (datetime.now(UTC) + outer.life).strftime("%Y-%m-%dT%H:%M:%SZ")
                self._answer(outer.status, ANSWER.format(number=len(outer.asked), end=end))

            def do_HEAD(self):
                outer.signed.append((self.headers["Authorization"], self.headers))
                self._answer(200, "")

            def _answer(self, status, text):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("first-token\n")
    return path


@pytest.fixture(params=[timedelta(hours=1)])
def server(request):
    server = Server(request.param)
    yield server
    server.close()


def environment(server, token):
    return {
        "AWS_ENDPOINT_URL_S3": server.address,
        "AWS_ENDPOINT_URL_STS": server.address,
        "AWS_ROLE_ARN": ARN,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
    }


def ask(server, token, times=1):
    from dataclasses import replace

    settings = replace(
        s3_settings(environment(server, token)),
        retries=S3Retries(first_pause_s=0.01, longest_pause_s=0.01, total_s=0.05),
    )
    requests = S3Requests(settings)
    for _ in range(times):
        requests.send("look for a bucket", lambda: requests.client.bucket_exists("runs"))


def test_requests_are_signed_with_the_keys_of_the_role(server, token):
    ask(server, token, times=3)
    (asked,) = server.asked
    assert asked["Action"] == ["AssumeRoleWithWebIdentity"]
    assert (asked["RoleArn"], asked["WebIdentityToken"]) == ([ARN], ["first-token"])
    for authorization, headers in server.signed:
        assert "Credential=key-1/" in authorization
        assert headers["X-Amz-Security-Token"] == "session-1"


@pytest.mark.parametrize("server", [timedelta(seconds=-1)], indirect=True)
def test_keys_that_end_are_renewed_with_the_present_token(server, token):
    ask(server, token)
    token.write_text("second-token")
    ask(server, token, times=2)
    assert [asked["WebIdentityToken"] for asked in server.asked] == [
        ["first-token"], ["second-token"], ["second-token"],
    ]  # fmt: skip


def test_a_refusal_names_the_role_and_never_the_token(server, token):
    server.status = 400
    with pytest.raises(StorageError, match=r"refuses the token.*trust") as caught:
        ask(server, token)
    assert ARN in str(caught.value)
    assert "first-token" not in str(caught.value)


def test_a_server_that_is_away_is_asked_again(server, token, caplog):
    server.close()
    with pytest.raises(StorageAwayError) as caught:
        ask(server, token)
    assert "next attempt" in caplog.text
    assert "first-token" not in caplog.text + str(caught.value)


def test_a_pod_without_a_token_is_told_why(server, tmp_path):
    with pytest.raises(StorageError, match="service account annotated"):
        ask(server, tmp_path / "none")


def test_keys_that_are_set_come_before_a_role(server, token):
    keys = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert s3_settings(environment(server, token) | keys).role is None
    assert s3_settings(environment(server, token)).role.arn == ARN


def test_the_address_of_sts_is_amazons_in_the_region(server, token):
    given = environment(server, token) | {"AWS_REGION": "eu-west-1"}
    del given["AWS_ENDPOINT_URL_STS"]
    assert s3_settings(given).role.endpoint == "https://sts.eu-west-1.amazonaws.com"
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL_STS"):
        s3_settings(given | {"AWS_ENDPOINT_URL_STS": "https://user:hush@sts"})
