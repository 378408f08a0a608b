import pytest

from espalier.records import StorageError
from espalier.storage.settings import s3_settings
from espalier.storage.transfer import PART_BYTES, part_size

KEYS = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hush"}


def test_the_environment_names_server_and_user():
    named = {"AWS_ENDPOINT_URL_S3": "http://minio:9000/", "AWS_CA_BUNDLE": "/ca.pem"}
    found = s3_settings({**KEYS, **named, "AWS_SESSION_TOKEN": "t"})
    assert (found.endpoint, found.host) == ("http://minio:9000", "minio:9000")
    assert (found.access_key, found.secret_key, found.session_token) == ("mine", "hush", "t")
    assert found.ca_bundle == "/ca.pem"
    empty = s3_settings({**KEYS, "AWS_SESSION_TOKEN": ""})
    assert (empty.session_token, empty.ca_bundle) == (None, None)


@pytest.mark.parametrize(
    ("environment", "endpoint", "region"),
    [
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, "https://s3.a.amazonaws.com", "a"),
        ({"AWS_DEFAULT_REGION": "b"}, "https://s3.b.amazonaws.com", "b"),
        ({}, "https://s3.us-east-1.amazonaws.com", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://all", "AWS_REGION": "a"}, "http://all", "a"),
        ({"AWS_ENDPOINT_URL": "x", "AWS_ENDPOINT_URL_S3": "https://s3"}, "https://s3", "us-east-1"),
    ],
)
def test_the_more_particular_name_comes_first(environment, endpoint, region):
    found = s3_settings({**KEYS, **environment})
    assert (found.endpoint, found.region) == (endpoint, region)
    assert found.is_encrypted == endpoint.startswith("https")


def test_keys_may_be_in_a_file(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = 50%off\n"
        "[other]\naws_access_key_id = b\naws_secret_access_key = c\naws_session_token = d\n"
    )
    found = s3_settings({"HOME": str(tmp_path)})
    assert (found.access_key, found.secret_key, found.session_token) == ("a", "50%off", None)
    other = s3_settings({"HOME": str(tmp_path), "AWS_PROFILE": "other"})
    assert (other.access_key, other.secret_key, other.session_token) == ("b", "c", "d")
    with pytest.raises(StorageError, match="AWS_PROFILE"):
        s3_settings({"HOME": str(tmp_path), "AWS_PROFILE": "third"})
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        s3_settings({"HOME": "/nowhere"})
    keys = str(tmp_path / ".aws" / "credentials")
    elsewhere = {"HOME": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": keys}
    assert s3_settings(elsewhere).access_key == "a"


@pytest.mark.parametrize("missing", KEYS)
def test_half_of_the_credentials_is_named(missing):
    with pytest.raises(StorageError, match=missing):
        s3_settings({name: value for name, value in KEYS.items() if name != missing})


@pytest.mark.parametrize("text", ["hush-a-key\n", "[default\nhush-a-key = 1"])
def test_a_file_that_does_not_parse_is_not_repeated(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(StorageError, match="credentials file") as caught:
        s3_settings({"AWS_SHARED_CREDENTIALS_FILE": str(path)})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["ftp://x", "http://", "http://a/b", "http://a?x=1", "s3", "http://me:hush@minio"]
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint):
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL_S3") as caught:
        s3_settings({**KEYS, "AWS_ENDPOINT_URL_S3": endpoint})
    assert "hush" not in str(caught.value)


def test_parts_grow_by_mebibytes_so_that_ten_thousand_are_enough():
    mib = 1 << 20
    assert part_size(1) == part_size(PART_BYTES * 10_000) == PART_BYTES
    assert part_size(PART_BYTES * 10_000 + 1) == part_size(17 * mib * 10_000) == 17 * mib
    assert part_size(17 * mib * 10_000 + 1) == 18 * mib
