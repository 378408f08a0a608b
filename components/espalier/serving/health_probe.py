"""Whether the service answers, and as the version that it should: the gate behind a roll-out."""

from __future__ import annotations

from typing import Any

import httpx2

from espalier.cluster.objects.serving import version_reference

_TIMEOUT_S = 20.0
_MAX_SAID = 200


class HealthProbe:
    """Asks an OpenAI-compatible server for one token of a version.

    The version has to be among the names that it serves, as `models:/NAME/3`: vLLM is given it by
    --served-model-name $(ESPALIER_MODEL).
    """

    def __init__(self, url: str, model: str) -> None:
        self._url = url.rstrip("/")
        self._model = model

    def fault(self, version: str) -> str | None:
        """What is wrong; None where a token came."""
        reference = version_reference(self._model, version)
        asked = {"model": reference, "prompt": [0], "max_tokens": 1, "temperature": 0.0}
        try:
            answer = httpx2.post(
                f"{self._url}/v1/completions", json=asked, timeout=_TIMEOUT_S, trust_env=False
            )
        except httpx2.HTTPError as error:
            return f"{self._url} does not answer ({type(error).__name__})"
        if answer.status_code != httpx2.codes.OK:
            said = answer.text[:_MAX_SAID]
            return f"{self._url} answers {reference} with HTTP {answer.status_code}: {said}"
        return None if _has_token(answer) else f"{self._url} answers {reference} with no token"


def _has_token(answer: httpx2.Response) -> bool:
    try:
        body: Any = answer.json()
        return int(body["usage"]["completion_tokens"]) == 1
    except (ValueError, KeyError, TypeError):
        return False
