"""The services by themselves; that they do what upstream's do is shown by `tests.interop.bfcl`."""

import json

import pytest

from espalier_environments.function_calling.conversations import Services

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


def test_a_folder_is_not_put_into_itself():
    files = begun("GorillaFileSystem", HOME)
    for tool in ("cp", "mv"):
        assert not files.call(tool, {"source": "docs", "destination": "docs"}).succeeded
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


def test_a_refused_call_keeps_what_it_had_changed():
    car = begun("VehicleControlAPI")
    assert not car.call("lockDoors", {"unlock": False, "door": ["driver", "roof"]}).succeeded
    car.end_turn()
    assert car.turns[0].states["VehicleControlAPI"]["doorStatus"]["driver"] == "locked"
