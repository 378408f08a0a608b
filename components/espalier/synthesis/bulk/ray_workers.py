"""Parts of an order on the nodes of a Ray cluster: one on every free CPU, wherever that is.

A part is written where it is drawn, into storage that all nodes share. A node that is lost costs
the rows that were not flushed: Ray gives its parts to others, which go on after the last row.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from espalier.config import Profile
from espalier.records import EngineError
from espalier.synthesis.bulk.order import Asked, Part
from espalier.synthesis.bulk.part import Drawn
from espalier.synthesis.bulk.workers import MakesParts, made_part

_LOST_WORKERS = 3
"""How many times another may go on with a part; who is killed a fourth time has too much of it."""
_ANSWERS_WITHIN_S = 10.0


@contextmanager
def ray_workers(profile: Profile, asked: Asked, work: Path) -> Generator[MakesParts]:
    """The CPUs of the cluster that RAY_ADDRESS names, or of the one that runs on this machine.

    Raises:
        EngineError: no cluster, none with a CPU, a node without the shared folders, or a part
            whose worker is killed every time.
    """
    _require_an_answer(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address="auto")
    except ConnectionError as error:
        raise EngineError(
            f"no Ray cluster is found ({error}); set RAY_ADDRESS to one that this machine is a "
            "node of, or draw in processes of this machine"
        ) from error
    try:
        if ray.cluster_resources().get("CPU", 0) < 1:
            raise EngineError("the Ray cluster has no CPU to draw questions on; add a node")
        # nodes have working directories of their own
        shared = replace(asked, knowledge=asked.knowledge.resolve()), work.resolve()
        yield lambda quotas: _as_finished(profile, *shared, quotas)
    finally:
        ray.shutdown()


def _require_an_answer(address: str) -> None:
    """Where nobody answers Ray asks on for many minutes; this asks once."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return  # no host and port: Ray knows how to find it
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({error})"
        ) from error


def _as_finished(
    profile: Profile, asked: Asked, work: Path, quotas: Mapping[Part, int]
) -> Generator[tuple[Part, Drawn]]:
    draw = ray.remote(num_cpus=1, max_retries=_LOST_WORKERS)(_made_on_a_node)
    text = profile.model_dump_json()
    parts = {draw.remote(text, asked, part, quota, work): part for part, quota in quotas.items()}
    waiting: list[Any] = list(parts)
    while waiting:
        (ended,), waiting = ray.wait(waiting, num_returns=1)
        try:
            drawn = ray.get(ended)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise EngineError(
                f"part {parts[ended].name} lost its worker {_LOST_WORKERS + 1} times, perhaps for "
                f"memory ({type(error).__name__}); the same command goes on after the last row "
                "written. Give the nodes fewer CPUs or more memory"
            ) from error
        yield parts[ended], drawn


def _made_on_a_node(text: str, asked: Asked, part: Part, quota: int, work: Path) -> Drawn:
    for folder in (asked.knowledge, work):
        if not folder.is_dir():
            raise EngineError(
                f"node {ray.util.get_node_ip_address()} of the Ray cluster has no {folder}; put "
                "knowledge and questions on storage that all its nodes mount there"
            )
    return made_part(text, asked, part, quota, work / part.name)
