"""Artifacts in a folder or in S3, behind one URI: `/data/runs/r17` or `s3://bucket/runs/r17`.

    location     the protocol, the location that a URI names, a local folder
    layout       object names of an artifact in S3, and the checks of its manifest
    bucket       reading an artifact from S3
    publication  writing one: contents first, then the manifest by a conditional write
    expiring     artifacts in S3 that are deleted when nobody has used them for a time
    mirror       a thread that copies the newest checkpoint of a folder to S3
    garbage      deletion of old objects that no manifest names
    objects      one artifact's objects: manifest, listing
    transfer     upload and download of one file, resumed after a kill
    requests     the S3 client: time-outs, retries, errors
    settings     S3 endpoint and credentials, from the environment or a file
    role         temporary keys for the pod's own identity, renewed

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
