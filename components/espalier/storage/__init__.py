"""Artifacts in a folder or in S3, behind one URI: `/data/runs/r17` or `s3://bucket/runs/r17`.

    place            what one artifact's place offers, and which kind of place a URI names
    local            a folder of this machine
    bucket           the objects below a prefix of an S3 bucket
    upload           one file into one object, in parts, going on where a killed attempt stood
    download         one object into one file, likewise
    requests         the client: time-outs, repetition, what a refusal means
    minio_internals  the requests of minio-py that have no public name
    settings         endpoint and credentials, from the environment or a file
    writing          what a disk refuses, in words

What is published is whole: payload first, manifest last. What is fetched is checked against it.
"""

from espalier.storage.place import Place, joined, open_place
from espalier.storage.settings import Patience, S3Settings

__all__ = ["Patience", "Place", "S3Settings", "joined", "open_place"]
