"""The services by themselves; that they do what upstream's do is shown by `tests.interop.bfcl`."""

import json

import pytest

from espalier_environments.function_calling.conversations import Services
from espalier_environments.function_calling.states import APIS, tool_names

HOME = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {
                "a.txt": {"type": "file", "content": "one\ntwo"},
                "docs": {"type": "directory", "contents": {}},
            },
        }
    }
}


def begun(service, config=None):
    return Services([service], {service: config or {}})


def called(services, tool, **arguments):
    return json.loads(services.call(tool, arguments).content)


def test_there_are_eight_services_with_128_tools():
    assert len(APIS) == 8
    assert sum(len(tool_names(api)) for api in APIS.values()) == 128


def test_files_are_copied_moved_and_read():
    files = begun("GorillaFileSystem", HOME)
    files.call("cp", {"source": "a.txt", "destination": "docs"})
    files.call("cd", {"folder": "docs"})
    files.call("mv", {"source": "a.txt", "destination": "b.txt"})
    assert called(files, "cat", file_name="b.txt") == {"file_content": "one\ntwo"}
    assert called(files, "pwd") == {"current_working_directory": "/home/docs"}
    assert called(files, "wc", file_name="b.txt", mode="w") == {"count": 2, "type": "words"}
    assert "error" in called(files, "cat", file_name="a.txt")


@pytest.mark.parametrize("tool", ["cp", "mv"])
def test_a_folder_is_not_put_into_itself(tool):
    files = begun("GorillaFileSystem", HOME)
    output = files.call(tool, {"source": "docs", "destination": "docs"})
    assert not output.succeeded
    assert called(files, "find") == {"matches": ["./a.txt", "./docs"]}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**9}),
        ("power", {"base": 10**300, "exponent": 10**6}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
        ("square_root", {"number": 2, "precision": 10**12}),
        ("logarithm", {"value": 2, "base": 10, "precision": 10**12}),
        ("multiply", {"a": 10**4000, "b": 10**4000}),
        ("mean", {"numbers": [1e308, 1e308, "x"]}),
        ("add", {"a": 1}),
        ("add", {"a": 1, "b": 2, "c": 3}),
    ],
)
def test_what_cannot_be_computed_is_refused_at_once(tool, arguments):
    output = begun("MathAPI").call(tool, arguments)
    assert not output.succeeded or "error" in output.content


def test_numbers_are_computed():
    mathematics = begun("MathAPI")
    assert called(mathematics, "logarithm", value=100, base=10, precision=5) == {"result": "2.0000"}
    assert called(mathematics, "square_root", number=2, precision=4) == {"result": "1.414"}
    assert called(mathematics, "mean", numbers=[1, 2]) == {"result": 1.5}
    assert called(mathematics, "power", base=2, exponent=10) == {"result": 1024}


def test_a_refused_call_keeps_what_it_had_changed():
    car = begun("VehicleControlAPI")
    assert not car.call("lockDoors", {"unlock": False, "door": ["driver", "roof"]}).succeeded
    car.end_turn()
    assert car.turns[0].states["VehicleControlAPI"]["doorStatus"]["driver"] == "locked"


def test_arguments_of_a_call_are_not_part_of_the_state():
    posting = begun("TwitterAPI", {"authenticated": True})
    tags = ["#a"]
    posting.call("post_tweet", {"content": "x", "tags": tags})
    tags.append("#b")
    assert called(posting, "get_tweet", tweet_id=0)["tags"] == ["#a"]


def test_a_flight_costs_twice_on_days_of_an_even_sum():
    travel = begun("TravelAPI", {"credit_card_list": {"1": {"balance": 1000}}})
    token = called(
        travel, "authenticate_travel", client_id="a", client_secret="b", refresh_token="c",
        grant_type="read_write", user_first_name="d", user_last_name="e",
    )["access_token"]  # fmt: skip
    flight = {"travel_from": "SFO", "travel_to": "LAX", "travel_class": "economy"}
    odd, even = "2024-05-20", "2024-05-21"
    assert called(travel, "get_flight_cost", travel_date=odd, **flight)["travel_cost_list"] == [200]
    booked = called(
        travel, "book_flight", access_token=token, card_id="1", travel_date=even, **flight
    )
    assert booked["booking_status"]
    left = called(travel, "get_credit_card_balance", access_token=token, card_id="1")
    assert left == {"card_balance": 600}
