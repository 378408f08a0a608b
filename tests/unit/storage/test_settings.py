import pytest

from espalier.records import StorageError
from espalier.storage.settings import s3_settings
from espalier.storage.transfer import PART_BYTES, part_size

KEYS = {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "hush"}


def test_the_environment_names_server_and_user():
    found = s3_settings({**KEYS, "AWS_ENDPOINT_URL_S3": "http://minio:9000/", "AWS_REGION": "eu"})
    assert (found.endpoint, found.host, found.region) == ("http://minio:9000", "minio:9000", "eu")
    assert (found.access_key, found.secret_key, found.is_encrypted) == ("mine", "hush", False)


def test_without_an_endpoint_it_is_amazons_own():
    assert s3_settings({**KEYS, "AWS_DEFAULT_REGION": "eu-west-1"}).endpoint == (
        "https://s3.eu-west-1.amazonaws.com"
    )


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


def test_missing_credentials_name_both_remedies(tmp_path):
    with pytest.raises(StorageError, match=r"AWS_ACCESS_KEY_ID.*credentials"):
        s3_settings({"HOME": str(tmp_path)})


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


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://x", "http://", "http://a/b", "s3"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint):
    with pytest.raises(StorageError, match="not the address"):
        s3_settings({**KEYS, "AWS_ENDPOINT_URL_S3": endpoint})


def test_a_password_in_the_endpoint_is_refused_and_not_repeated():
    with pytest.raises(StorageError, match="user or password") as caught:
        s3_settings({**KEYS, "AWS_ENDPOINT_URL_S3": "http://me:hush-hush@minio"})
    assert "hush-hush" not in str(caught.value)


def test_parts_grow_so_that_ten_thousand_are_enough():
    assert part_size(1) == PART_BYTES
    assert part_size(PART_BYTES * 10_000) == PART_BYTES
    huge = 5 << 40  # the largest object that S3 takes
    assert part_size(huge) * 10_000 >= huge
    assert part_size(huge) % (1 << 20) == 0
