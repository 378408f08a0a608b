"""Whether the servers answer that a run will ask: judges, teachers, simulated users, vLLM."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import BaseModel

from espalier.completions.routing import is_proxied
from espalier.config import EndpointConfig, Profile, VllmConfig
from espalier.records import EngineError

_WITHIN_S = 5.0
_PAUSE_S = 1.0
_PORTS = {"http": 80, "https": 443}


def check_endpoints(profile: Profile) -> None:
    """Connect to every server that the stages of a run will ask, and ask it nothing.

    A server behind a proxy of the environment is left out: the proxy decides who is reached.

    Raises:
        EngineError: one of them does not take connections; the message names its key.
    """
    reached: set[str] = set()
    urls: dict[str, list[str]] = defaultdict(list)
    for key, url in asked_endpoints(profile):
        urls[key].append(url)
    for key, each in urls.items():  # of several servers under one key one is enough
        if any(url in reached or is_proxied(url) for url in each):
            continue
        errors = {url: error for url in each if (error := _connection_error(url))}
        if len(errors) == len(each):
            raise EngineError(
                f"{key} = {', '.join(each)}: no connection ({errors[each[0]]}). Start the server, "
                "or correct the address; no stage was begun"
            )
        reached |= set(each) - set(errors)


def asked_endpoints(profile: Profile) -> Iterator[tuple[str, str]]:
    """Key and address of each server that the stages of a run ask."""
    unused = {"endpoints"}  # candidates of `espalier evaluate`
    if profile.rollout.engine != "vllm":
        unused.add("rollout.vllm")
    if profile.teacher.kind != "endpoint":
        unused.add("teacher.endpoint")
    for key, url in _addresses(profile, ""):
        if not any(key.startswith(f"{section}.") for section in unused):
            yield key, url


def _addresses(value: object, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, VllmConfig):
        yield from ((f"{key}.urls", url) for url in value.urls)
    elif isinstance(value, EndpointConfig) and value.urls:
        yield from ((f"{key}.url", url) for url in value.urls)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _addresses(getattr(value, name), f"{key}.{name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _addresses(one, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _addresses(one, f"{key}[{number}]")


def _connection_error(url: str) -> OSError | None:
    """Why no connection could be made; a server that is just starting has a second attempt."""
    parts = urlsplit(url)
    address = (parts.hostname, parts.port or _PORTS[parts.scheme])
    failed: OSError | None = None
    for pause_s in (0.0, _PAUSE_S):
        time.sleep(pause_s)
        try:
            socket.create_connection(address, timeout=_WITHIN_S).close()
        except OSError as error:
            failed = error
        else:
            return None
    return failed
