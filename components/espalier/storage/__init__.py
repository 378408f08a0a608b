"""Artifacts in a folder or in S3, behind one URI: `/data/runs/r17` or `s3://bucket/runs/r17`.

    place        the protocol, the place that a URI names, a local folder
    layout       where the files of an artifact lie in S3, and how its manifest is checked
    bucket       an artifact in S3: its readers
    publication  its writers: contents first, then the manifest by a conditional write
    kept         artifacts in S3 that are deleted when nobody has used them for a time
    mirror       the newest checkpoint of a folder, copied there by a thread
    garbage      what no manifest names, deleted by age
    objects      one artifact's objects: manifest, listing
    transfer     upload and download of one file, resumed after a kill
    requests     the S3 client: time-outs, retries, errors
    settings     S3 endpoint and credentials, from the environment or a file
    role         keys for the identity that a platform gave this pod, renewed

Publishing writes the payload first and the manifest last; fetching checks every file against it.
"""

from espalier.storage.layout import restore_names
from espalier.storage.location import ArtifactLocation, joined, open_location
from espalier.storage.settings import S3Retries, S3Settings

__all__ = [
    "ArtifactLocation",
    "S3Retries",
    "S3Settings",
    "joined",
    "open_location",
    "restore_names",
]
