"""The database of a customer service domain, and the copy of it that an episode changes.

The files are those of tau-bench (Yao et al. 2024, arXiv:2406.12045): a JSON object of records by id
for each table. A copy holds only the records that its episode wrote; all others are read from the
database that every episode shares, so that a reset costs nothing, however large the files are.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from espalier.records import DataError

Record = dict[str, Any]
"""A row of a table: a JSON object."""

MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Database:
    """Tables of records by id, as every episode starts with them; never changed."""

    tables: Mapping[str, Mapping[str, Record]]

    def copy(self) -> DatabaseCopy:
        """Return a fresh copy for an episode."""
        return DatabaseCopy(self)


@dataclass(frozen=True, slots=True)
class DatabaseCopy:
    """A database as one episode sees and changes it (copy on write)."""

    _base: Database
    _written: dict[tuple[str, str], Record] = field(default_factory=dict[tuple[str, str], Record])

    def find(self, table: str, key: str) -> Record | None:
        """Return a record for reading, None if there is none; use `edit` to change it."""
        if (table, key) in self._written:
            return self._written[table, key]
        return self._base.tables[table].get(key)

    def edit(self, table: str, key: str) -> Record:
        """Return the episode's own copy of a record, to change in place.

        Raises:
            KeyError: the record does not exist.
        """
        if (table, key) not in self._written:
            self._written[table, key] = copy.deepcopy(self._base.tables[table][key])
        return self._written[table, key]

    def put(self, table: str, key: str, record: Record) -> None:
        """Add a record, or replace one."""
        self._written[table, key] = record

    def rows(self, table: str) -> Iterator[tuple[str, Record]]:
        """Yield all records with their ids, in the order of the file, new ones last."""
        base = self._base.tables[table]
        for key, record in base.items():
            yield key, self._written.get((table, key), record)
        for (of_table, key), record in self._written.items():
            if of_table == table and key not in base:
                yield key, record

    def changes(self) -> dict[str, dict[str, Record]]:
        """Return table -> id -> record, for records that differ from the shared database."""
        changed: dict[str, dict[str, Record]] = {}
        for (table, key), record in self._written.items():
            before = self._base.tables[table].get(key)
            if before is None or canonical_json(before) != canonical_json(record):
                changed.setdefault(table, {})[key] = record
        return changed

    def digest(self) -> str:
        """Return a digest that is equal for two copies of one database if all records are equal.

        Only changed records are hashed: the others are equal in all copies of one database. 1 and
        1.0 differ, as in tau-bench's hash of the whole database (`get_data_hash`).
        """
        return hashlib.sha256(canonical_json(self.changes()).encode()).hexdigest()


def canonical_json(value: object) -> str:
    """Return JSON that is the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# ------------------------------------------------------------------- what the tools rely on


class _Fields(BaseModel):
    """Fields of a record that tools read; the record may have others."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Name(_Fields):
    first_name: str
    last_name: str


class _Address(_Fields):
    zip: str


class _RetailMethod(_Fields):
    source: str
    balance: int | float | None = None


class _RetailUser(_Fields):
    name: _Name
    address: _Address
    email: str
    payment_methods: dict[str, _RetailMethod]


class _Variant(_Fields):
    item_id: str
    options: dict[str, Any]
    available: bool
    price: int | float


class _Product(_Fields):
    name: str
    product_id: str
    variants: dict[str, _Variant]


class _Item(_Fields):
    product_id: str
    item_id: str
    price: int | float
    options: dict[str, Any]


class _Payment(_Fields):
    transaction_type: str
    amount: int | float
    payment_method_id: str


class _Order(_Fields):
    user_id: str
    status: str
    items: list[_Item]
    payment_history: list[_Payment]


class _AirlineMethod(_Fields):
    source: str
    amount: int | float | None = None


class _AirlineUser(_Fields):
    payment_methods: dict[str, _AirlineMethod]
    reservations: list[str]


class _Segment(_Fields):
    flight_number: str
    date: str
    origin: str
    destination: str
    price: int | float


class _Paid(_Fields):
    payment_id: str
    amount: int | float


class _Reservation(_Fields):
    user_id: str
    cabin: str
    flights: list[_Segment]
    passengers: list[dict[str, Any]]
    payment_history: list[_Paid]
    nonfree_baggages: int


class _FlightDay(_Fields):
    status: str
    available_seats: dict[str, int] | None = None
    prices: dict[str, int | float] | None = None


class _Flight(_Fields):
    origin: str
    destination: str
    scheduled_departure_time_est: str
    scheduled_arrival_time_est: str
    dates: dict[str, _FlightDay]


_SHAPES: dict[str, dict[str, TypeAdapter[Any]]] = {
    "retail": {
        "products": TypeAdapter(dict[str, _Product]),
        "orders": TypeAdapter(dict[str, _Order]),
        "users": TypeAdapter(dict[str, _RetailUser]),
    },
    "airline": {
        "flights": TypeAdapter(dict[str, _Flight]),
        "reservations": TypeAdapter(dict[str, _Reservation]),
        "users": TypeAdapter(dict[str, _AirlineUser]),
    },
}


def load_database(folder: Path, domain: str) -> Database:
    """Read the tables of a domain from `folder`, one JSON file each.

    Args:
        folder: holds `users.json` and, for "retail", `products.json` and `orders.json`; for
            "airline", `flights.json` and `reservations.json`.
        domain: "retail" or "airline".

    Raises:
        DataError: a file is missing, too large or not a JSON object of records; a record lacks a
            field that tools read, or refers to a record that does not exist.
    """
    return checked_database(
        {table: _read_table(folder / f"{table}.json") for table in _SHAPES[domain]},
        domain,
        str(folder),
    )


def checked_database(tables: Mapping[str, object], domain: str, where: str) -> Database:
    """Return a database after checking the fields that the tools of `domain` read.

    Raises:
        DataError: a record is malformed; the message names `where`, table and record.
    """
    for table, shape in _SHAPES[domain].items():
        try:
            shape.validate_python(tables[table])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise DataError(f"{where}, {table}: {place}: {first['msg']}") from error
    database = Database(cast("Mapping[str, Mapping[str, Record]]", dict(tables)))
    for fault in _dangling(database, domain):
        raise DataError(f"{where}, {fault}")
    return database


def _read_table(path: Path) -> object:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); environment.database names a folder with "
            "users.json and the other tables of the domain"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _dangling(database: Database, domain: str) -> Iterator[str]:
    """Yield a line for each reference to a record that does not exist."""
    table = {"retail": "orders", "airline": "reservations"}[domain]
    users = database.tables["users"]
    for key, record in database.tables[table].items():
        user = users.get(record["user_id"])
        if user is None:
            yield f"{table}: {key}: there is no user {record['user_id']!r}"
        elif domain == "retail":
            yield from _dangling_in_order(database, key, record, user)
    for table, day in (("flights", "dates"),) if domain == "airline" else ():
        for key, flight in database.tables[table].items():
            for date, facts in flight[day].items():
                if facts["status"] == "available" and not (
                    facts.get("available_seats") and facts.get("prices")
                ):
                    yield f"{table}: {key}.{date}: available, without available_seats and prices"


def _dangling_in_order(database: Database, key: str, order: Record, user: Record) -> Iterator[str]:
    for item in order["items"]:
        if item["product_id"] not in database.tables["products"]:
            yield f"orders: {key}: there is no product {item['product_id']!r}"
    for payment in order["payment_history"]:
        method = payment["payment_method_id"]
        if method not in user["payment_methods"]:
            yield f"orders: {key}: its user has no payment method {method!r}"
    for name, method in user["payment_methods"].items():
        if ("gift_card" in name or method["source"] == "gift_card") and method.get(
            "balance"
        ) is None:
            yield f"users: {order['user_id']}.{name}: a gift card without balance"
