"""Requests to the Kubernetes API as values: pure functions build them, either client sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier.cluster.objects.names import K8sObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; the functions of this module make it.

    Attributes:
        purpose: for messages, after "could not": "read the Deployment espalier-serving".
    """

    method: str
    path: str
    purpose: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: K8sObject | None = None
    content_type: str = "application/json"


def object_path(api_version: str, plural: str, namespace: str, name: str = "") -> str:
    """Path of an object, or of all of a kind where no name is given.

    object_path("ray.io/v1", "rayjobs", "one", "r17") is /apis/ray.io/v1/namespaces/one/rayjobs/r17.
    """
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def read(path: str, purpose: str = "", **query: str) -> Request:
    """Read an object, or a list: `labelSelector` in `query` restricts it."""
    return Request(method="GET", path=path, purpose=purpose or f"read {path}", query=query)


def create(folder: str, manifest: K8sObject, purpose: str = "") -> Request:
    """Create an object; `folder` is the path of its kind."""
    purpose = purpose or f"create {manifest['metadata']['name']} in {folder}"
    return Request(method="POST", path=folder, purpose=purpose, body=manifest)


def delete(path: str, purpose: str = "", **preconditions: str) -> Request:
    """Delete an object with all that it owns.

    Args:
        path: of the object.
        purpose: for messages.
        preconditions: `uid` or `resourceVersion` that the object must still have; else 409.
    """
    options: K8sObject = {"propagationPolicy": "Background"}
    if preconditions:
        options["preconditions"] = preconditions
    return Request(method="DELETE", path=path, purpose=purpose or f"delete {path}", body=options)


def merge(path: str, fields: K8sObject, purpose: str = "", **query: str) -> Request:
    """Change fields of an object; with a `resourceVersion` among them only if it is still that."""
    return Request(
        method="PATCH", path=path, purpose=purpose or f"change {path}", query=query, body=fields,
        content_type="application/merge-patch+json",
    )  # fmt: skip


def apply(path: str, fields: K8sObject, *, manager: str, purpose: str = "") -> Request:
    """Own these fields of an object by server-side apply, whoever wrote them last."""
    return Request(
        method="PATCH", path=path, purpose=purpose or f"apply {path}", body=fields,
        query={"fieldManager": manager, "force": "true"},
        content_type="application/apply-patch+yaml",
    )  # fmt: skip


def owner_uid(manifest: K8sObject) -> str:
    """UID of the first owner; empty where there is none."""
    references = manifest["metadata"].get("ownerReferences") or [{}]
    return str(references[0].get("uid", ""))
