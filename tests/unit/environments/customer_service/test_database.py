import copy
import json
from functools import reduce
from operator import getitem

import pytest

from espalier.records import DataError
from espalier_environments.customer_service.database import checked_database, load_database
from tests.unit.environments.customer_service.tables import AIRLINE, RETAIL


def database():
    return checked_database(copy.deepcopy(RETAIL), "retail", "tables")


def test_copies_of_one_database_are_independent():
    shared = database()
    first, second = shared.copy(), shared.copy()
    first.edit("users", "ada_1")["email"] = "new"
    assert second.find("users", "ada_1")["email"] == "ada@example.com"
    assert shared.tables["users"]["ada_1"]["email"] == "ada@example.com"
    assert first.digest() != second.digest()


def test_changes_and_digests_are_those_of_values():
    copied = database().copy()
    email = copied.edit("users", "ada_1")["email"]
    copied.edit("users", "ada_1")["email"] = email
    assert copied.changes() == {}
    amounts = [database().copy(), database().copy()]
    for one, amount in zip(amounts, (20, 20.0), strict=True):
        one.edit("orders", "#W1")["payment_history"][0]["amount"] = amount
    assert amounts[0].digest() != amounts[1].digest(), "an integer is no float"
    copied.put("orders", "#W0", {"order_id": "#W0"})
    assert [key for key, _ in copied.rows("orders")] == ["#W1", "#W2", "#W0"], "new rows come last"


def spoilt(tables, *path, value=None):
    """A copy of the tables with another value at `path`; None deletes it."""
    changed = copy.deepcopy(tables)
    *above, last = path
    at = reduce(getitem, above, changed)
    if value is None:
        del at[last]
    else:
        at[last] = value
    return changed


METHODS = ("users", "ada_1", "payment_methods")


@pytest.mark.parametrize(
    ("tables", "domain", "said"),
    [
        (spoilt(RETAIL, "users", "ada_1", "email"), "retail", "users: ada_1.email"),
        (spoilt(RETAIL, "users", value=[1]), "retail", "users: "),
        (spoilt(RETAIL, "orders", "#W1", "user_id", value="bob"), "retail", "'bob'"),
        (spoilt(RETAIL, "products", "50"), "retail", "'50'"),
        (spoilt(RETAIL, *METHODS, "paypal_1"), "retail", "#W2: "),
        (spoilt(RETAIL, *METHODS, "gift_card_1", "balance"), "retail", "balance"),
        (spoilt(AIRLINE, "flights", "F1", "dates", "2024-05-20", "prices"), "airline",
         "F1.2024-05-20"),
    ],
)  # fmt: skip
def test_a_faulty_table_is_refused_by_its_record(tables, domain, said):
    with pytest.raises(DataError, match="tables, ") as refused:
        checked_database(tables, domain, "tables")
    assert said in str(refused.value)


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path):
    with pytest.raises(DataError, match=r"products\.json"):
        load_database(tmp_path, "retail")
    for table in RETAIL:
        (tmp_path / f"{table}.json").write_text(json.dumps(RETAIL[table]))
    (tmp_path / "orders.json").write_text('{"#W1": NaN}')
    with pytest.raises(DataError, match=r"orders\.json"):
        load_database(tmp_path, "retail")
