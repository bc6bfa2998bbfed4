"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}` with the right status."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response

from ..errors import (
    AuthenticationError,
    InvalidRequestError,
    RateLimitError,
    SandboxBusyError,
    SandboxError,
    UpstreamError,
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A request that gets an error for an answer.

    Arguments:
        status: the HTTP status.
        code: OpenAI's word for the kind, where it has one.
        param: the parameter that is wrong.
        retry_after: seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = status, message, code, param, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's envelope."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        """The whole answer."""
        known = self.retry_after is not None and math.isfinite(self.retry_after)
        headers = {"retry-after": f"{max(1, round(self.retry_after or 0))}"} if known else {}
        return json_response(self.body, self.status, headers)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content` as JSON."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json")


def error_response(error: Exception) -> Response:
    """The answer that `error` deserves: the model endpoint's own status and body, ours otherwise."""
    if isinstance(error, ApiError):
        return error.response
    if isinstance(error, UpstreamError) and error.status is not None and isinstance(error.body, dict):
        return json_response(error.body, error.status)
    return _of_ours(error).response


def _of_ours(error: Exception) -> ApiError:
    match error:
        case InvalidRequestError():
            return ApiError(error.status, str(error), code=error.code, param=error.param)
        case UpstreamError():
            return ApiError(error.status or 502, str(error), code="upstream_error")
        case RateLimitError():
            return ApiError(429, str(error), code="rate_limit_exceeded", retry_after=error.retry_after)
        case SandboxBusyError():
            return ApiError(429, str(error), code="sandbox_busy", retry_after=5)
        case AuthenticationError():
            return ApiError(502, str(error), code="sandbox_authentication")
        case SandboxError():
            return ApiError(502, str(error), code="sandbox_error")
    return ApiError(500, "The proxy failed: see its log for this x-request-id.", code="internal_error")
