"""A manifest comes from a bucket that others may write to, and decides which files are written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import ArtifactError
from espalier.records.artifact import content_digest, integrity_digest
from espalier.storage import S3Settings
from espalier.storage.bucket import S3Place
from tests.fakes.s3_stand_in import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

NOBODY = S3Settings(
    endpoint="http://127.0.0.1:9", region=REGION, access_key=ACCESS_KEY, secret_key=SECRET_KEY
)
PLACE = S3Place(NOBODY, BUCKET, "knowledge")
FIELDS = {"producer": "p", "config_digest": "c", "seed": 0, "packages": {}, "created": "now"}
NAMES = st.text(st.sampled_from("ab./\\ ~\0\n\u00e9"), max_size=12)


def naming(names):
    files = dict.fromkeys(names, "0" * 64)
    digests = {"integrity": integrity_digest(files), "content": content_digest(files)}
    return json.dumps({**FIELDS, "files": files, **digests}).encode()


@settings(max_examples=300)
@given(st.lists(NAMES, min_size=1, max_size=3))
def test_files_of_an_accepted_manifest_lie_below_the_folder(tmp_path_factory, names):
    folder = tmp_path_factory.getbasetemp().resolve() / "there"
    try:
        taken = PLACE._parsed(naming(names))
    except ArtifactError:
        return
    for name in taken.files:
        assert (folder / name).resolve().is_relative_to(folder)
        assert (folder / name).resolve() != folder


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]",:files0.'), max_size=60))
def test_invalid_values_are_refused_with_a_message(content):
    with pytest.raises(ArtifactError, match=f"s3://{BUCKET}/knowledge/manifest.json"):
        PLACE._parsed(content.encode() if isinstance(content, str) else content)
