"""Profile section `kubernetes.kubeflow`: the API that runs are submitted to."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from espalier.config.data import Section
from espalier.config.quantities import DnsLabel


class KubeflowConfig(Section):
    """A server of Kubeflow Pipelines, and under which names it keeps what is submitted."""

    endpoint: str | None = Field(default=None, pattern=r"https?://[^@\s]+")
    """Such as http://localhost:8888, or https://HOST/pipeline; without it KF_PIPELINES_ENDPOINT."""
    token_file: Path | None = None
    """Bearer token; read anew by every command. Without it KF_PIPELINES_TOKEN, or the file
    KF_PIPELINES_SA_TOKEN_PATH, or none."""
    namespace: DnsLabel | None = None
    """In multi-user mode the profile's namespace; None where Kubeflow has one user."""
    service_account: DnsLabel | None = None
    """Of the pods of a run; espalier-trainer where its steps use sandboxes."""
    pipeline: DnsLabel = "espalier-data-to-model"
    """Name under which the compiled pipeline is uploaded."""
    experiment: str = Field(default="espalier", min_length=1)
    """Kubeflow experiment of the runs."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long one request may take."""
    attempts: int = Field(default=4, ge=1)
    """Of a request that changes nothing, while the server is away or fails."""
