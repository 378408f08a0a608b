"""Profile section `serving`: how much the endpoint of a policy takes on at once.

It is in no stage's digest: how a policy is served is not what a run computes.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from espalier.config.data import Section


class ControllerConfig(Section):
    """The controller that lets a Deployment follow `champion`."""

    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two looks at the alias and the Deployment."""
    max_backoff_s: float = Field(default=60.0, gt=0)
    """Longest pause while the API server or MLflow is away."""
    health_attempts: int = Field(default=5, ge=1)
    """Probes in a row that the new version may leave unanswered, once its pods are ready."""


class ServingConfig(Section):
    """Bounds of the OpenAI-compatible endpoint; what is beyond them is refused at once."""

    rows: int = Field(default=64, ge=1)
    """Answers that are written side by side; the others wait, first come first served."""
    max_waiting: int = Field(default=256, ge=0)
    """Answers that may wait; a request that would make more is refused with status 429."""
    max_choices: int = Field(default=16, ge=1)
    """Answers that one request may ask for: its prompts times `n`."""
    max_context: int = Field(default=32_768, ge=2)
    """Tokens of a prompt and its answer, where the policy was built for more."""
    max_body_bytes: int = Field(default=1 << 18, ge=1024)
    """Largest body of a request; a larger one is refused with status 413."""
    max_connections: int = Field(default=1024, ge=1)
    """Open connections; further ones are refused with status 503."""
    body_timeout_s: float = Field(default=10.0, gt=0)
    """How long the body of a request may take to arrive."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """How long an answer may take, its wait for a row included."""
    linger_s: float = Field(default=5.0, ge=0)
    """How long requests are still taken after SIGTERM: a cluster sends some until every node has
    heard that the pod is leaving."""
    drain_s: float = Field(default=40.0, gt=0)
    """How long after that answers may be finished."""
    controller: ControllerConfig = ControllerConfig()

    @model_validator(mode="after")
    def _a_request_fits(self) -> Self:
        places = self.rows + self.max_waiting
        if self.max_choices > places:
            raise ValueError(
                f"serving.max_choices={self.max_choices} answers of one request exceed the "
                f"{places} places (rows={self.rows} + max_waiting={self.max_waiting}), so it could "
                "never be taken; lower the one or raise the others"
            )
        return self
