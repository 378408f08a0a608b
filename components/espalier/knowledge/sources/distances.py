"""Which larger city is nearest: great-circle distances in blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS = 128


def nearest_larger(
    latitudes: NDArray[np.float64], longitudes: NDArray[np.float64], populations: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each city the index of the nearest one with strictly more people, or -1.

    Compares chords between points of the unit sphere, which order like great-circle distances.
    """
    order = np.argsort(-populations, kind="stable")
    points = _unit_vectors(latitudes[order], longitudes[order])
    descending = populations[order]
    num_larger = np.searchsorted(-descending, -descending, side="left")
    nearest = np.full(len(order), -1, dtype=np.int64)
    for start in range(0, len(order), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(order)))
        limit = int(num_larger[rows].max(initial=0))
        if limit == 0:
            continue
        closeness = points[rows, :1] * points[:limit, 0]
        closeness += points[rows, 1:2] * points[:limit, 1]
        closeness += points[rows, 2:] * points[:limit, 2]
        closeness[np.arange(limit)[None, :] >= num_larger[rows, None]] = -2.0
        best = closeness.argmax(axis=1)
        nearest[rows] = np.where(num_larger[rows] > 0, best, -1)
    result = np.full(len(order), -1, dtype=np.int64)
    result[order] = np.where(nearest >= 0, order[nearest], -1)
    return result


def _unit_vectors(
    latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]
) -> NDArray[np.float64]:
    latitude, longitude = np.radians(latitudes), np.radians(longitudes)
    east = np.cos(latitude)
    columns = (east * np.cos(longitude), east * np.sin(longitude), np.sin(latitude))
    return np.ascontiguousarray(np.stack(columns, axis=1))
