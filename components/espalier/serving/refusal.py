"""A request that is not answered, in the shape in which OpenAI's API says so."""

from __future__ import annotations

from typing import Any

CLIENT_GONE = 499
"""Counted, never sent: there is nobody to send it to."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Refusal(Exception):
    """Why a request is not answered; its text is meant for who sent it."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        """Refuse.

        Args:
            status: of HTTP.
            message: what was wrong, and what to do.
            param: the part of the request that is at fault.
            code: one of OpenAI's, for programs.
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """What OpenAI's clients read."""
        return {
            "error": {
                "message": str(self),
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }
