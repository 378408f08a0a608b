"""Artifacts of a few files, and places to put them."""

import hashlib
import os
import uuid
from pathlib import Path

import pytest

from espalier.records import Provenance, publishing
from espalier.storage import S3Retries, S3Settings
from espalier.storage.layout import object_name
from tests.fakes.s3_stand_in import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

QUICK = S3Retries(first_pause_s=0.01, longest_pause_s=0.05, total_s=1.0, timeout_s=20)
HASTY = S3Retries(first_pause_s=0.01, longest_pause_s=0.05, total_s=20, timeout_s=0.3)
"""Gives up waiting for a slow answer soon, and asks again for long."""
MINIO = "ESPALIER_TEST_S3"
"""s3://bucket/prefix of a real server, whose address and keys are in the AWS_ variables."""


FILES = {"rows.jsonl": b"{}\n", "deep/er/weights": b"w" * 99}


def artifact(folder: Path, files=None, seed=0):
    """A published artifact; `files` are contents by name."""
    provenance = Provenance(producer="ingest", config_digest="c", seed=seed)
    with publishing(folder, provenance) as draft:
        for name, content in (FILES if files is None else files).items():
            path = draft.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return draft.published


def files(folder: Path):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def key_of(content: bytes, prefix="runs/r17/knowledge"):
    """Where a published file with this content lies."""
    return f"{prefix}/{object_name(hashlib.sha256(content).hexdigest())}"


def settings(stand_in, retries=QUICK, **changes):
    given = {
        "endpoint": stand_in.endpoint, "region": REGION,
        "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "retries": retries,
    }  # fmt: skip
    return S3Settings(**given | changes)


def s3_place(stand_in, prefix="runs/r17/knowledge", *, clock=None, pool=None, **changes):
    from espalier.storage.bucket import S3Location

    return S3Location(settings(stand_in, **changes), BUCKET, prefix, clock=clock, pool=pool)


def minio_uri():
    """A fresh prefix on the real server, or a skipped test."""
    uri = os.environ.get(MINIO)
    if not uri:
        pytest.skip(f"{MINIO} names no bucket of a real S3 server")
    return f"{uri.rstrip('/')}/{uuid.uuid4().hex}"
