"""Keys for the token of a pod's account, from a server that answers as STS does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from espalier.records import StorageAwayError, StorageError
from espalier.storage import S3Retries
from espalier.storage.requests import S3Requests
from espalier.storage.settings import s3_settings
from tests.fakes.loopback import Handler, Server, serving

ARN = "arn:aws:iam::111122223333:role/espalier-runs"
ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>key-{number}</AccessKeyId>
<SecretAccessKey>hush</SecretAccessKey><SessionToken>session-{number}</SessionToken>
<Expiration>{end}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


@pytest.fixture
def server():
    """STS for POST, and S3 for everything else; both note what they were asked with."""
    stand_in = SimpleNamespace(life=timedelta(hours=1), status=200, asked=[], signed=[])

    class Answering(Handler):
        def do_POST(self):
            self.read_body()
            stand_in.asked.append(parse_qs(urlsplit(self.path).query))
            end = (datetime.now(UTC) + stand_in.life).strftime("%Y-%m-%dT%H:%M:%SZ")
            text = ANSWER.format(number=len(stand_in.asked), end=end)
            self.say(stand_in.status, text.encode())

        def do_HEAD(self):
            stand_in.signed.append(self.headers)
            self.say(200, b"")

    with serving(Server(Answering)) as running:
        stand_in.address = running.address
        yield stand_in


def environment(server, token):
    return {
        "AWS_ENDPOINT_URL_S3": server.address,
        "AWS_ENDPOINT_URL_STS": server.address,
        "AWS_ROLE_ARN": ARN,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
    }


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("first-token\n")
    return path


def ask(server, token, times=1):
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
    for headers in server.signed:
        assert "Credential=key-1/" in headers["Authorization"]
        assert headers["X-Amz-Security-Token"] == "session-1"


def test_keys_that_end_are_renewed_with_the_present_token(server, token):
    server.life = timedelta(seconds=-1)
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
    server.address = "http://127.0.0.1:9"
    with pytest.raises(StorageAwayError) as caught:
        ask(server, token)
    assert "next attempt" in caplog.text
    assert "first-token" not in caplog.text + str(caught.value)


def test_a_pod_without_a_token_is_told_why(server, tmp_path):
    with pytest.raises(StorageError, match="service account annotated"):
        ask(server, tmp_path / "none")


def test_keys_that_are_set_come_before_a_role(server, token):
    given = environment(server, token)
    keys = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert s3_settings(given | keys).role is None
    assert s3_settings(given).role.arn == ARN
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL_STS"):
        s3_settings(given | {"AWS_ENDPOINT_URL_STS": "https://user:hush@sts"})
    del given["AWS_ENDPOINT_URL_STS"]
    amazons = s3_settings(given | {"AWS_REGION": "eu-west-1"}).role.endpoint
    assert amazons == "https://sts.eu-west-1.amazonaws.com"
