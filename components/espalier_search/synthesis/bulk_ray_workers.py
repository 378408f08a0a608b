"""Parts of a bulk draw on the nodes of a Ray cluster, one part per free CPU.

Workers write their parts into storage that all nodes share. A lost node costs only the rows that
were not flushed: Ray gives its parts to other workers, which continue after the last row.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from espalier.config import Profile
from espalier.records import EngineError
from espalier_search.synthesis.bulk_drawing import BulkOrder, DrawParts, Part, PartMaker
from espalier_search.synthesis.bulk_parts import DrawnPart

_LOST_WORKERS = 3
"""Retries of a part whose worker is lost; a part that kills four workers needs too much memory."""
_ANSWERS_WITHIN_S = 10.0


@contextmanager
def ray_workers(profile: Profile, order: BulkOrder, work: Path) -> Generator[DrawParts]:
    """Workers on the CPUs of the cluster at RAY_ADDRESS, or of the one on this machine.

    Raises:
        EngineError: there is no cluster, it has no CPU, a node lacks the shared folders, or the
            worker of a part is killed at every attempt.
    """
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address="auto")
    except ConnectionError as error:
        raise EngineError(
            f"found no Ray cluster ({error}); set RAY_ADDRESS to a cluster that this machine is a "
            "node of, or draw without --ray"
        ) from error
    try:
        if ray.cluster_resources().get("CPU", 0) < 1:
            raise EngineError("the Ray cluster has no CPU to draw questions on; add a node")
        # relative paths would differ, as every node has a working directory of its own
        shared = replace(order, knowledge=order.knowledge.resolve()), work.resolve()
        yield lambda quotas: _finished_parts(profile, *shared, quotas)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Connect once, because Ray itself retries for many minutes if nothing answers."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return  # not host:port, for example "auto": Ray resolves it
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({error})"
        ) from error


def _finished_parts(
    profile: Profile, order: BulkOrder, work: Path, quotas: Mapping[Part, int]
) -> Generator[tuple[Part, DrawnPart]]:
    draw = ray.remote(num_cpus=1, max_retries=_LOST_WORKERS)(_make_on_node)
    text = profile.model_dump_json()
    parts = {draw.remote(text, order, part, quota, work): part for part, quota in quotas.items()}
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
                f"lack of memory ({type(error).__name__}). Give the nodes fewer CPUs or more "
                "memory; the same command continues after the last row written"
            ) from error
        yield parts[ended], drawn


def _make_on_node(text: str, order: BulkOrder, part: Part, quota: int, work: Path) -> DrawnPart:
    for folder in (order.knowledge, work):
        if not folder.is_dir():
            raise EngineError(
                f"node {ray.util.get_node_ip_address()} of the Ray cluster has no {folder}; put "
                "knowledge and questions on storage that all its nodes mount there"
            )
    return _maker(text, order).make(part, quota, work / part.name)


@lru_cache(maxsize=1)
def _maker(text: str, order: BulkOrder) -> PartMaker:
    """The worker's part maker, which loads the knowledge once for all its parts."""
    return PartMaker(Profile.model_validate_json(text), order)
