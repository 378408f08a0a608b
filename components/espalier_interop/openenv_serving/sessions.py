"""The sessions of a server: their number is limited, and some begin over HTTP.

A session belongs to its socket or, if it began by `openenv/session/create`, to its id. Sockets may
come and go on a session with an id; it ends when it is closed, or after too long without a socket
and without a call.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from espalier.config import EnvironmentServerConfig
from espalier.wire.openenv import ErrorCode, MessageFault
from espalier_interop.openenv_serving.session import Session
from espalier_interop.openenv_serving.tasks import ServedTasks


class NoFreeSession(MessageFault):
    """The limit of sessions is reached."""

    def __init__(self, most: int) -> None:
        told = f"all {most} sessions are taken; try again in a moment"
        super().__init__(told, ErrorCode.CAPACITY_REACHED)
        self.counts = {"active_sessions": most, "max_sessions": most}


@dataclass(slots=True)
class _Kept:
    """A session that is kept under an id."""

    session: Session
    attached: bool = False
    closing: bool = False
    end: asyncio.TimerHandle | None = None


class SessionManager:
    """Begins and ends sessions."""

    def __init__(self, served: ServedTasks, config: EnvironmentServerConfig) -> None:
        self._served = served
        self._config = config
        self._numbers = itertools.count()
        self._kept: dict[str, _Kept] = {}
        self.open_sessions = 0

    @contextmanager
    def of_socket(self, session_id: str | None) -> Generator[Session]:
        """Return the session for a socket: a new one that ends with it, or the one with that id.

        Raises:
            NoFreeSession: there are as many as there may be.
            MessageFault: no session has that id, or another socket is on it.
        """
        if session_id is None:
            session = self._begin()
            try:
                yield session
            finally:
                self._end(session)
            return
        kept = self._found(session_id)
        if kept.attached:
            raise MessageFault("another socket is on that session", ErrorCode.SESSION_ERROR)
        kept.attached = True
        self._stay(session_id, kept)
        try:
            yield kept.session
        finally:
            kept.attached = False
            if kept.closing:
                self.close(session_id)
            else:
                self._stay(session_id, kept)

    def create(self) -> str:
        """Begin a session and return its id, which cannot be guessed.

        Raises:
            NoFreeSession: the limit of sessions is reached.
        """
        session_id = secrets.token_urlsafe(18)
        kept = _Kept(self._begin())
        self._kept[session_id] = kept
        self._stay(session_id, kept)
        return session_id

    def of_id(self, session_id: object) -> Session:
        """Return the session with that id, for one call.

        Raises:
            MessageFault: there is none.
        """
        kept = self._found(session_id)
        self._stay(str(session_id), kept)
        return kept.session

    def close(self, session_id: object) -> bool:
        """End the session with that id; False if a socket uses it, in which case it ends with that.

        Raises:
            MessageFault: there is none.
        """
        kept = self._found(session_id)
        kept.closing = True
        if kept.attached:
            return False
        del self._kept[str(session_id)]
        if kept.end is not None:
            kept.end.cancel()
        self._end(kept.session)
        return True

    def _found(self, session_id: object) -> _Kept:
        kept = self._kept.get(session_id) if isinstance(session_id, str) else None
        if kept is None:
            raise MessageFault("session_id: there is no such session", ErrorCode.SESSION_ERROR)
        return kept

    def _stay(self, session_id: str, kept: _Kept) -> None:
        """Restart the timeout of an idle session; while a socket is attached, that has its own."""
        if kept.end is not None:
            kept.end.cancel()
            kept.end = None
        if not kept.attached:
            loop = asyncio.get_running_loop()
            kept.end = loop.call_later(self._config.idle_timeout_s, self.close, session_id)

    def _begin(self) -> Session:
        if self.open_sessions >= self._config.max_sessions:
            raise NoFreeSession(self._config.max_sessions)
        self.open_sessions += 1
        number = next(self._numbers)
        return Session(self._served, number, step_timeout_s=self._config.step_timeout_s)

    def _end(self, session: Session) -> None:
        self.open_sessions -= 1
        session.close()
