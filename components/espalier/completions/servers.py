"""The only module that uses `openai`: chat requests to the servers of one model.

Several servers share the requests (`routing`). One that does not answer is left out, and its
requests are sent again elsewhere: a request holds the whole conversation. One that comes, or comes
back, is asked. Alone, a server has nobody to stand in for it: its requests are repeated.

Task families import this module whether or not a model is ever called, also on machines without the
extra `train`. Therefore `openai` is imported only where a connection is opened.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import httpx2
import tenacity

from espalier.completions import routing
from espalier.completions.answering import CallUsage
from espalier.config import EndpointConfig
from espalier.records import EngineError

_RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that are retried; every 5xx status is retried too."""
_FIRST_WAIT_S = 0.5
_MAX_BODY_BYTES = 8 << 20
_REMEDIES = {
    401: "check the key in key_file",
    403: "check the key in key_file, and what it may use",
    404: "check url (with its version, as https://host/v1) and model",
}
_KEPT_MESSAGE = 300
_SHARED_CHARACTERS = 128
"""Characters of the first question that decide, beside the system message, who is asked. Longer
ones would part the turns of a conversation that is one growing text, as a simulated user's is."""
_HEALTH_WITHIN_S = 5.0
_LOOKS_EVERY_S = 5.0

_REFUSED_REQUESTS = frozenset({400, 413, 422})
"""Statuses that concern a single request, such as a conversation too long for the model."""

Sleep = Callable[[float], Awaitable[None]]
WaitForAdmission = Callable[[], Awaitable[None]]

_log = logging.getLogger(__name__)


class EndpointFault(EngineError):
    """No server answered one request; other requests may still succeed."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`timeout`, `connection`, `http_503` (any status), or `no_completion`."""


class RefusedRequestError(EndpointFault):
    """The server refuses what one request says, such as a text too long for its model."""


class _TooLongError(Exception):
    """A reply that exceeds the size limit."""


@dataclass(slots=True, eq=False)
class _ChatServer(routing.RoutedServer):
    client: Any = None
    """An `openai.AsyncOpenAI`; those of one endpoint share their connections."""
    lost_by: str = ""
    """Why it is left out; empty if it is asked."""


class ChatServers:
    """The servers of one model; the only object that holds the API key."""

    def __init__(self, config: EndpointConfig, key: str, *, sleep: Sleep) -> None:
        self.lost = 0
        """Number of times that a server was left out."""
        self.servers: dict[str, _ChatServer] = {}
        """By address; also those that are left out."""
        self._config = config
        self._key = key
        self._sleep = sleep
        self._routes = routing.Routes(f"{config.name}: no server", lambda: self.usable)

    async def __aenter__(self) -> Self:
        """Prepare the connections; nothing is sent before the first request."""
        import openai

        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._config.urls[0],
            max_retries=0,  # `send` retries
            timeout=self._config.timeout_s,
        )
        for url, host in (await self._addresses()).items():
            self._connect(url, host)
        self._looking = asyncio.create_task(self._admit_newcomers())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking
        await self._client.close()

    @property
    def usable(self) -> list[_ChatServer]:
        """The servers that are asked."""
        return [server for server in self.servers.values() if not server.lost_by]

    async def send(
        self, fields: dict[str, Any], usage: CallUsage, admitted: WaitForAdmission
    ) -> bytes:
        """Send a request, with retries, and return the body of the successful response.

        Args:
            fields: the fields of the chat completion.
            usage: the totals to which requests and retries are added.
            admitted: awaited before every try, repeats included.

        Raises:
            EngineError: a server refuses for good, or none answers in `attempts` tries.
        """
        import openai

        retrying = tenacity.AsyncRetrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(self._config.attempts),
            wait=self._wait_s,
            retry=tenacity.retry_if_exception(_is_transient),
            reraise=True,
        )
        sent = 0

        async def admit() -> None:
            nonlocal sent
            await admitted()
            usage.requests += 1
            usage.retries += sent > 0
            sent += 1

        seat = self._routes.seat(_beginning(fields["messages"]))
        try:
            async for attempt in retrying:
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        self._routes.move(seat)  # another one may be less busy
                    return await self._answered(seat, fields, admit)
        except (openai.APIError, httpx2.HTTPError, TimeoutError, _TooLongError) as error:
            raise self._fault(error, seat.server) from None  # a cause may quote the headers
        finally:
            self._routes.leave(seat)
        raise AssertionError("the loop above returns or raises")

    async def _answered(
        self, seat: routing.Seat[_ChatServer], fields: dict[str, Any], admit: WaitForAdmission
    ) -> bytes:
        """Return the answer of the seat's server; if that is lost, of another one at once.

        A healthy server that fails all the same, overloaded or too late, stays in use.
        """
        import openai

        while True:
            server = seat.server
            if server.lost_by:
                self._routes.move(seat)
                continue
            await admit()
            try:
                body = await self._body(server, fields)
            except (openai.APIError, httpx2.HTTPError, TimeoutError) as error:
                if not _is_transient(error) or not await self._is_lost(server):
                    raise
            else:
                server.answered += 1
                return body

    async def _is_lost(self, server: _ChatServer) -> bool:
        """Whether a server is left out now, after a request of it failed; never the last one."""
        if not server.lost_by and len(self.usable) > 1:
            fault = await self._health_fault(server)
            # meanwhile another request may have noticed, or the other servers may be lost
            if fault is not None and not server.lost_by and len(self.usable) > 1:
                server.lost_by = fault
                self.lost += 1
                remain = len(self.usable)
                _log.warning("%s is left out (%d servers remain): %s", server.url, remain, fault)
        return bool(server.lost_by)

    async def _body(self, server: _ChatServer, fields: dict[str, Any]) -> bytes:
        create = server.client.chat.completions.with_streaming_response.create
        # The client's timeout is per read: a server that sends one byte a second never exceeds it.
        async with asyncio.timeout(self._config.timeout_s), create(**fields) as response:
            body = bytearray()
            async for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _MAX_BODY_BYTES:
                    raise _TooLongError(f"an answer of more than {_MAX_BODY_BYTES} bytes")
            return bytes(body)

    async def _addresses(self) -> dict[str, str]:
        """Address of each server -> host name of the profile's address for it."""
        found: dict[str, str] = {}
        for url in self._config.urls:
            behind = [] if routing.is_proxied(url) else await routing.addresses_of(url)
            found |= dict.fromkeys(behind or [url], urlsplit(url).netloc)
        return found

    def _connect(self, url: str, host: str, *, lost_by: str = "") -> None:
        client = self._client.with_options(base_url=url, default_headers={"Host": host})
        self.servers[url] = _ChatServer(url, client=client, lost_by=lost_by)

    async def _admit_newcomers(self) -> None:
        """For ever, look for servers that are new or back."""
        while True:
            await asyncio.sleep(_LOOKS_EVERY_S)
            for url, host in (await self._addresses()).items():
                if url not in self.servers:
                    self._connect(url, host, lost_by="not asked yet")
                server = self.servers[url]
                if server.lost_by and await self._health_fault(server) is None:
                    server.lost_by = ""
                    _log.warning("%s is used from now on (%d servers)", url, len(self.usable))

    async def _health_fault(self, server: _ChatServer) -> str | None:
        """Why the server does not answer now; None if it does, be it with a refusal."""
        import openai

        try:
            async with asyncio.timeout(_HEALTH_WITHIN_S):
                await server.client.get(urljoin(server.url, "/health"), cast_to=httpx2.Response)
        except openai.APIStatusError as error:
            return f"HTTP {error.status_code}" if error.status_code >= 500 else None
        except TimeoutError:
            return f"no answer in {_HEALTH_WITHIN_S:g} s"
        except (openai.APIError, httpx2.HTTPError) as error:
            return str(error)
        return None

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Return jittered exponential backoff or Retry-After, the longer; at most `max_wait_s`."""
        limit = self._config.max_wait_s
        backoff = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=limit)(state)
        error = state.outcome.exception() if state.outcome else None
        return min(limit, max(backoff, _requested_wait_s(error)))

    def _fault(self, error: Exception, server: _ChatServer) -> EngineError:
        import openai

        status = getattr(error, "status_code", None)
        said = self._explained(error, server)
        if not (_is_transient(error) or status in _REFUSED_REQUESTS):
            return EngineError(said)
        if status in _REFUSED_REQUESTS:
            return RefusedRequestError(said, f"http_{status}")
        if status:
            return EndpointFault(said, f"http_{status}")
        timeouts = openai.APITimeoutError | httpx2.TimeoutException | TimeoutError
        return EndpointFault(said, "timeout" if isinstance(error, timeouts) else "connection")

    def _explained(self, error: Exception, server: _ChatServer) -> str:
        config = self._config
        status = getattr(error, "status_code", None)
        if isinstance(error, TimeoutError):
            text = f"no whole answer in timeout_s={config.timeout_s}"
        else:
            text = f"HTTP {status}: {error}" if status else str(error)
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())[:_KEPT_MESSAGE]
        who = f"{server.url} ({config.model})"
        if _is_transient(error):
            remedy = (
                f"{config.attempts} attempts failed; run the same command again, or raise attempts"
            )
            if lost := [other.url for other in self.servers.values() if other.lost_by]:
                who = f"no server is left: {', '.join(lost)} did not answer before, and {who}"
        else:
            remedy = _REMEDIES.get(status or 0, "it refuses the request for good")
        return f"{who}: {text}; {remedy}"


def api_key(config: EndpointConfig) -> str:
    """Return the key in the endpoint's key file; empty if it names no file.

    Raises:
        EngineError: the file cannot be read or is empty.
    """
    if config.key_file is None:
        return ""
    try:
        key = config.key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(
            f"key_file={config.key_file}: cannot be read as a key ({error})"
        ) from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise EngineError(f"key_file={config.key_file}: does not hold one line with a key")
    return key


def _beginning(messages: Sequence[Mapping[str, object]]) -> str:
    """What requests share that read the same: up to the first question, of that its beginning."""
    found: list[str] = []
    for message in messages:
        is_question = message["role"] == "user"
        content = str(message["content"])
        found.append(content[:_SHARED_CHARACTERS] if is_question else content)
        if is_question:
            break
    return json.dumps(found)


def _is_transient(error: BaseException) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in _RETRIED or error.status_code >= 500
    # a connection that breaks inside a body raises the transport's own error
    return isinstance(error, openai.APIConnectionError | httpx2.TransportError | TimeoutError)


def _requested_wait_s(error: BaseException | None) -> float:
    """Return the seconds of the Retry-After header, a number or a date; 0 without one."""
    import openai

    if not isinstance(error, openai.APIStatusError):
        return 0.0
    header = error.response.headers.get("retry-after", "")
    if header.strip().isdecimal() and len(header) < 10:
        return float(header)
    try:
        when = email.utils.parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, when.timestamp() - time.time())
