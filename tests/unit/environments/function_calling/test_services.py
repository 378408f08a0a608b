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


def played(files, script):
    """Play calls written as words, such as `mv a b`; return whether each succeeded."""
    names = {
        "mkdir": ("dir_name",), "cd": ("folder",), "rm": ("file_name",), "touch": ("file_name",),
        "cp": ("source", "destination"), "mv": ("source", "destination"),
        "echo": ("content", "file_name"),
    }  # fmt: skip
    done = []
    for line in script:
        tool, *words = line.split()
        done.append(files.call(tool, dict(zip(names[tool], words, strict=True))).succeeded)
    return done


SHARED = ("mkdir a", "cd a", "mkdir x", "cd ..", "cp a c")
"""After these, a and c have one folder x in common."""
CYCLES = (
    (*SHARED, "mv c a", "cd a", "mv c x"),
    (*SHARED, "cp c a", "cd a", "mv c x"),
    (*SHARED, "mv c a", "cd a", "cp c x"),
    (*SHARED, "cp c a", "cd a", "cp c x"),
    (*SHARED, "mv a c", "cd c", "mv a x"),
    (*SHARED, "cp a c", "cd c", "cp a x"),
    (*SHARED, "cp a b", "mv b a", "cd a", "mv b x"),
    ("mkdir a", "cd a", "mkdir x", "cd x", "mkdir y", "cd ..", "cd ..",
     "cp a c", "mv c a", "cd a", "mv c x"),
    (*SHARED, "cd a", "cd x", "mkdir z", "cd ..", "cd ..", "mv c a", "cd a", "mv c x"),
    (*SHARED, "mkdir b", "mv c b", "mv b a", "cd a", "mv b x"),
)  # fmt: skip


@pytest.mark.parametrize("script", CYCLES)
def test_shared_folders_make_no_cycle(script):
    files = begun("GorillaFileSystem")
    done = played(files, script)
    assert done == [True] * (len(script) - 1) + [False], "only the last call closes the cycle"
    files.end_turn()
    assert called(files, "find", path="/")


def test_folders_that_double_are_refused_before_they_fill_the_memory():
    files = begun("GorillaFileSystem")
    played(files, ["mkdir a0", "cd a0", "touch f", "cd .."])
    for number in range(40):
        done = played(
            files,
            [f"mkdir a{number + 1}", f"cp a{number} a{number + 1}", f"cp a{number} b",
             f"mv b a{number + 1}", f"rm a{number}"],
        )  # fmt: skip
    assert not all(done)
    files.end_turn()
    assert len(json.dumps(files.turns[0].states)) < 10_000_000


@pytest.mark.parametrize(
    "script",
    [
        ["mkdir d", "cd d"] * 2000,
        ["touch " + "n" * 100_000, *(f"touch {n}" + "n" * 100_000 for n in range(20))],
        ["touch f", "echo " + "t" * 2_000_000 + " f"],
        ["touch f", "echo " + "t" * 100_000 + " f", *(f"cp f {n}" for n in range(20))],
        ["mkdir d", "cd d", "mkdir e", "cd ..", "cd d", *["mkdir d", "cd d"] * 100],
    ],
)
def test_a_tree_beyond_its_limits_is_refused_and_kept(script):
    files = begun("GorillaFileSystem")
    assert not all(played(files, script))
    files.end_turn()
    assert len(json.dumps(files.turns[0].states)) < 10_000_000


def test_a_refused_move_leaves_the_folder_where_it_was():
    files = begun("GorillaFileSystem")
    played(files, CYCLES[0])
    assert called(files, "ls") == {"current_directory_content": ["x", "c"]}
