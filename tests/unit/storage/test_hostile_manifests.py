"""A manifest comes from a bucket that others may write to, and decides which files are written."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import open_artifact
from espalier.records.artifact import ArtifactError, content_digest, integrity_digest
from espalier.storage.layout import MAX_MANIFEST_BYTES, parsed_manifest, restore_names
from tests.factories.storage import artifact, files, s3_place
from tests.fakes.s3_stand_in import InMemoryPool, S3StandIn

KEY = "runs/r17/knowledge"
WHERE = "s3://espalier/knowledge/manifest.json"
FIELDS = {"producer": "p", "config_digest": "c", "seed": 0, "packages": {}, "created": "now"}
NAMES = st.text(st.sampled_from("ab./\\ ~\0\n\u00e9"), max_size=12)
ODD_NAMES = (
    "../up", "/etc/passwd", "a/../../up", "a//b", "a/./b", ".", "..", "", "a/", "./a", "~/a",
    "a\0b", "a\nb", "a\tb", "manifest.json", "a/manifest.json", "rows.espalier-partial", "x" * 256,
    "/".join("y" * 200 for _ in range(30)), "sha256/" + "0" * 64, "rows", "rows/below", "\u202egpj",
    "C:\\windows", "\\\\host\\share", "a\u0000", "con", "-rf", "*", "%2e%2e/up", "\u00e9", "\ud800",
)  # fmt: skip
ODD_DIGESTS = ("", "0" * 63, "0" * 65, "Z" * 64, "A" * 64, "../" * 21 + "0", "0" * 64, "\n" * 64)
ODD_VALUES = (
    None, True, -1, 0, 2**63, 10**4000, -(10**400), 1.5, float("inf"), "", "x" * 10_000, [], {},
    [[[[]]]], {"a": {"b": 1}}, "\ud800", "\0",
)  # fmt: skip
FUZZED = 3000


def naming(names):
    named = dict.fromkeys(names, "0" * 64)
    digests = {"integrity": integrity_digest(named), "content": content_digest(named)}
    return json.dumps({**FIELDS, "files": named, **digests}).encode()


@settings(max_examples=300)
@given(st.lists(NAMES, min_size=1, max_size=3))
def test_files_of_an_accepted_manifest_lie_below_the_folder(tmp_path_factory, names):
    folder = tmp_path_factory.getbasetemp().resolve() / "there"
    try:
        taken = parsed_manifest(naming(names), WHERE)
    except ArtifactError:
        return
    for name in taken.files:
        assert (folder / name).resolve().is_relative_to(folder)
        assert (folder / name).resolve() != folder


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]",:files0.'), max_size=60))
def test_invalid_values_are_refused_with_a_message(content):
    with pytest.raises(ArtifactError, match=WHERE):
        parsed_manifest(content.encode() if isinstance(content, str) else content, WHERE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b'"seed":0', b'"seed":0,"seed":1'), "'seed' is given twice"),
        (lambda text: text.replace(b'{"rows"', b'{"rows":"0","rows"'), "'rows' is given twice"),
        (lambda text: text.replace(b'"sizes":{"rows":1', b'"sizes":{"rows":-1'), "of -1 bytes"),
        (lambda text: text.replace(b'"rows":1', b'"rows":9223372036854775807'), "of 92233"),
        (lambda text: text.replace(b'"rows":1', b'"else":1'), "not among its files"),
        (lambda text: text.replace(b'"schema_version":1', b'"schema_version":2'), "schema 2"),
        (lambda text: text.replace(b'"schema_version":1', b'"schema_version":true'), "not a manif"),
        (lambda text: text.replace(b'"seed":0', b'"seed":0,"more":1'), "not a manifest"),
        (lambda text: b"[" * 100_000, "not a manifest"),
        (lambda text: b" " * (MAX_MANIFEST_BYTES + 1), "longer than 64 MiB"),
        (lambda text: text.replace(b'"seed":0', b'"seed":' + b"9" * 5000), "not a manifest"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(tmp_path, change, message):
    content = artifact(tmp_path / "here", {"rows": b"1"}).model_dump_json().encode()
    assert change(content) != content
    with pytest.raises(ArtifactError, match=message):
        parsed_manifest(change(content), WHERE)


OUTSIDE = ("../escaped", "/etc/escaped", "a/../../escaped", "a//b", ".")


@pytest.mark.parametrize("names", [["a", "a/b"], *([name] for name in OUTSIDE)])
def test_a_name_outside_or_of_file_and_folder_is_refused(names):
    with pytest.raises(ArtifactError, match=r"outside of the artifact|as a folder"):
        parsed_manifest(naming(names), WHERE)


def made_odd(rng, fields):
    match rng.randrange(6):
        case 0:
            fields["files"][rng.choice(ODD_NAMES)] = "0" * 64
        case 1:
            fields["files"][rng.choice(sorted(fields["files"]))] = rng.choice(ODD_DIGESTS)
        case 2:
            fields[rng.choice(sorted(fields))] = rng.choice(ODD_VALUES)
        case 3:
            fields.pop(rng.choice(sorted(fields)))
        case 4:
            fields["sizes"][rng.choice([*ODD_NAMES, "rows"])] = rng.choice(ODD_VALUES)
        case _:
            fields[rng.choice(["links", "files ", "mode", "__proto__"])] = rng.choice(ODD_VALUES)


def damaged(rng, content):
    where = rng.randrange(len(content))
    return rng.choice(
        [
            content[:where],
            content[:where] + rng.randbytes(rng.randint(1, 4)) + content[where + 1 :],
            content.replace(b'"rows":', b'"rows": "0", "rows":'),
            b"\xef\xbb\xbf" + content,
        ]
    )


def fuzzed(rng, fields):
    """The bytes of a manifest in which one to four things are odd; most have sums that fit."""
    fields = json.loads(json.dumps(fields))
    for _ in range(rng.randint(1, 4)):
        if all(isinstance(fields.get(key), dict) and fields[key] for key in ("files", "sizes")):
            made_odd(rng, fields)
    named = fields.get("files")
    if rng.random() < 0.8 and isinstance(named, dict) and "\ud800" not in named:
        fields["integrity"] = integrity_digest(named)
        fields["content"] = content_digest(named)
    content = json.dumps(fields).encode()
    return damaged(rng, content) if rng.random() < 0.2 else content


def refusal(place, folder):
    """The message with which a fetch is refused; None if it is not."""
    try:
        place.fetch(folder)
    except ArtifactError as error:
        return str(error)
    return None


def test_fuzzed_manifests_give_one_error_or_nothing_outside(tmp_path):
    """Through the whole of a fetch: what is accepted is fetched, and lies below its folder."""
    s3 = S3StandIn()
    place = s3_place(s3, pool=InMemoryPool(s3))
    manifest = artifact(tmp_path / "here", {"rows": b"1", "deep/er": b"2"})
    place.publish(tmp_path / "here")
    former = s3.objects[f"{KEY}/manifest.json"].content
    rng, refused = random.Random(0), 0
    outside = {tmp_path / "in", tmp_path / "here"}
    for _ in range(FUZZED):
        content = fuzzed(rng, manifest.model_dump())
        s3.objects[f"{KEY}/manifest.json"] = (content, "0")
        if message := refusal(place, tmp_path / "in" / "there"):
            assert KEY in message
            assert len(message) < 500
            refused += 1
        assert set(tmp_path.iterdir()) <= outside
        assert {path.name for path in (tmp_path / "in").glob("*")} <= {"there", ".there.fetch"}
    assert 0.8 * FUZZED < refused < FUZZED, "some are odd and harmless: a changed seed, a late name"
    s3.objects[f"{KEY}/manifest.json"] = (former, "0")
    assert place.fetch(tmp_path / "in" / "last") == manifest
    assert files(tmp_path / "in" / "last") == files(tmp_path / "here")


def test_a_folder_with_a_hostile_manifest_keeps_its_names(tmp_path):
    """What Kubeflow's launcher downloads is looked at as closely as what is fetched."""
    (tmp_path / "in" / "sha256").mkdir(parents=True)
    (tmp_path / "in" / "sha256" / ("0" * 64)).write_bytes(b"")
    (tmp_path / "in" / "manifest.json").write_bytes(naming(["../up"]))
    with pytest.raises(ArtifactError, match="outside of the artifact"):
        restore_names(tmp_path / "in")
    assert not (tmp_path / "up").exists()
    with pytest.raises(ArtifactError):
        open_artifact(tmp_path / "in")
