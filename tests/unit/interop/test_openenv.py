"""A family's tasks behind OpenEnv's protocol: sessions, what is refused, and places given back."""

import asyncio
import json
import time

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from espalier.config import ServingConfig
from espalier.environments.contract import EnvironmentLostError, Opening
from espalier.wire.keys import ApiKeys, new_key
from espalier_interop.openenv_serving.tasks import ServedTasks
from tests.factories import smuggled
from tests.fakes.openenv_served import served_shop, served_tasks, shop_profile
from tests.unit.environments.prices import Prices


@pytest.fixture(scope="module")
def shop():
    with served_shop() as (url, _app):
        yield url


def opened(url, path="/ws", **how):
    return connect(url.replace("http", "ws") + path, proxy=None, **how)


def told(url, *messages, after_s=0.0, **how):
    """What a server answers to messages of one session."""

    async def exchange():
        async with opened(url, **how) as socket:
            await asyncio.sleep(after_s)
            answers = []
            for message in messages:
                text = message if isinstance(message, str | bytes) else json.dumps(message)
                await socket.send(text)
                answers.append(json.loads(await socket.recv()))
            return answers

    return asyncio.run(exchange())


def reset(**data):
    return {"type": "reset", "data": data}


def call(name, **arguments):
    return {
        "type": "step",
        "data": {"type": "call_tool", "tool_name": name, "arguments": arguments},
    }


def test_an_episode_is_played_to_its_reward(shop):
    begun, priced, converted, ended, after = told(
        shop,
        reset(seed=4),
        call("price", item="thing5"),
        call("convert", amount=5),
        call("answer", text="35"),
        call("answer", text="35"),
    )
    assert begun["type"] == "observation"
    prompt = [{"role": "user", "content": "What does thing5 cost in crowns?"}]
    assert begun["data"]["observation"]["prompt"] == prompt
    assert (begun["data"]["reward"], begun["data"]["done"]) == (None, False)
    assert priced["data"]["observation"] == {"tool_name": "price", "result": "5", "error": None}
    assert converted["data"]["observation"]["result"] == "35 crowns"
    assert ended["data"]["done"] is True
    assert ended["data"]["reward"] == pytest.approx(1.1)
    assert ended["data"]["metadata"]["reward_terms"] == {"outcome": 1.0, "format": 0.1}
    assert "no episode" in after["data"]["message"]


def test_a_seed_always_begins_the_same_task(shop):
    first, again, other, *unseeded = told(
        shop, reset(seed=2), reset(seed=2), reset(seed=3), reset(), reset()
    )
    assert first == again != other
    one, next_one = (found["data"]["observation"]["task_id"] for found in unseeded)
    assert one != next_one


def test_a_gold_answer_is_in_nothing_that_is_sent(shop):
    answers = told(shop, reset(seed=12), {"type": "state"}, call("price", item="thing1"))
    with httpx2.Client(base_url=shop, trust_env=False) as client:
        tasks = client.post("/prices/tasks", json={"split": "heldout"}).text
    assert "gold" not in json.dumps(answers) + tasks
    assert '"217"' not in tasks, "thing31 costs 217 crowns"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[1]", "INVALID_JSON"),
        ('{"type": NaN}', "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ({"type": "dance"}, "UNKNOWN_TYPE"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "secret"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task_id": "nobody"}}, "VALIDATION_ERROR"),
        ({"type": "state", "more": 1}, "VALIDATION_ERROR"),
        (call("answer", words="x"), "VALIDATION_ERROR"),
    ],
)
def test_after_a_malformed_message_the_session_goes_on(shop, message, code):
    _, refused, still = told(shop, reset(seed=0), message, call("price", item="thing1"))
    assert (refused["type"], refused["data"]["code"]) == ("error", code)
    assert still["data"]["observation"]["result"] == "1"


def test_what_a_policy_may_cause_is_an_observation(shop):
    _, unknown, wrong = told(shop, reset(), call("fly", to="moon"), call("price", item=3))
    for caused, name in ((unknown, "fly"), (wrong, "item")):
        assert caused["data"]["observation"]["result"].startswith("error: ")
        assert name in caused["data"]["observation"]["result"]


def test_tools_are_listed_and_called_by_json_rpc_too(shop):
    def rpc(method, **params):
        return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 7, "method": method,
                                        "params": params}}  # fmt: skip

    first, _, listed, called, unknown = told(
        shop,
        {"type": "step", "data": {"type": "list_tools"}},
        reset(seed=1),
        rpc("tools/list"),
        rpc("tools/call", name="price", arguments={"item": "thing2"}),
        rpc("tools/paint"),
    )
    for tools in (first["data"]["observation"]["tools"], listed["data"]["result"]["tools"]):
        assert [tool["name"] for tool in tools] == ["price", "convert", "answer"]
    assert called["data"]["result"]["result"] == "2"
    assert (called["data"]["id"], unknown["data"]["error"]["code"]) == (7, -32601)


def test_a_session_begun_over_http_is_shared_and_closed(shop):
    with httpx2.Client(base_url=shop, trust_env=False) as client:

        def rpc(method, **params):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return client.post("/mcp", json=body).json()

        session = rpc("openenv/session/create")["result"]["session_id"]
        told(shop, reset(seed=1), path=f"/ws?session_id={session}")
        arguments = {"item": "thing2"}
        played = rpc("tools/call", session_id=session, name="price", arguments=arguments)
        assert played["result"]["result"] == "2"
        assert rpc("openenv/session/close", session_id=session)["result"]["closed"] is True
        again = rpc("tools/call", session_id=session, name="price", arguments=arguments)
        assert "no such session" in again["error"]["message"]


def test_http_says_what_is_served_and_refuses_steps(shop):
    with httpx2.Client(base_url=shop, trust_env=False) as client:
        assert client.get("/health").json() == {"status": "healthy"}
        assert client.get("/list_environments").json() == ["prices"]
        splits = [one["name"] for one in client.get("/prices/splits").json()]
        assert splits == ["train", "dev", "heldout"]
        assert client.post("/prices/num_tasks", json={"split": "test"}).json() == {"num_tasks": 9}
        found = client.post("/prices/task_range", json={"split": "train", "start": 2, "stop": 4})
        assert len(found.json()["tasks"]) == 2
        assert client.post("/prices/task", json={"split": "dev", "index": 99}).status_code == 400
        assert client.post("/other/tasks", json={"split": "dev"}).status_code == 404
        refused = client.post("/step", json={"action": {}})
        assert (refused.status_code, "/ws" in refused.json()["detail"]) == (409, True)


def test_a_client_beyond_the_most_is_told_so():
    with served_shop(max_sessions=2) as (url, app):

        async def crowd():
            first, second = await opened(url), await opened(url)
            async with first, second, opened(url) as third:
                return json.loads(await third.recv())

        full = asyncio.run(crowd())
        assert full["data"]["code"] == "CAPACITY_REACHED"
        assert full["data"]["max_sessions"] == 2
        assert told(url, reset())[0]["type"] == "observation"
        _until(lambda: app.desk.open_sessions == 0)


def test_silent_sessions_are_closed_in_time():
    with served_shop(idle_timeout_s=0.2) as (url, app):
        body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        httpx2.post(f"{url}/mcp", json=body, trust_env=False)

        async def wait():
            async with opened(url) as socket:
                said = json.loads(await socket.recv())
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            return said

        assert "silent for 0.2 s" in asyncio.run(wait())["data"]["message"]
        _until(lambda: app.desk.open_sessions == 0)


def test_connections_that_are_cut_leave_no_session():
    with served_shop(max_sessions=8) as (url, app):
        port = int(url.rpartition(":")[2])

        async def cut(number):
            socket = await opened(url)
            if number % 2:
                await socket.send(json.dumps(reset()))
            socket.transport.abort()

        async def cut_all():
            for number in range(64):
                await cut(number)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()

        asyncio.run(cut_all())
        _until(lambda: app.desk.open_sessions == 0)
        assert told(url, reset())[0]["type"] == "observation"


@pytest.mark.parametrize("path", ["/ws", "/mcp"])
@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.nip.io:8000"])
def test_no_socket_opens_under_a_bought_name(shop, path, name):
    at = {"host": "127.0.0.1", "port": int(shop.rpartition(":")[2])}
    with pytest.raises(InvalidStatus) as refused:
        told(f"http://{name}", reset(), path=path, **at)
    assert refused.value.response.status_code == 403
    assert told("http://localhost", reset(), **at)[0]["type"] == "observation"


@pytest.mark.parametrize("path", ["/ws", "/mcp"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000"])
def test_no_page_of_another_site_opens_a_socket(shop, path, origin):
    with pytest.raises(InvalidStatus) as refused:
        told(shop, reset(), path=path, origin=origin)
    assert refused.value.response.status_code == 403
    answer = httpx2.post(f"{shop}/mcp", json={}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert told(shop, reset(), origin=shop)[0]["type"] == "observation", "its own pages may"


@pytest.mark.parametrize("kind", smuggled.KINDS)
def test_no_request_hides_in_the_body_of_another(shop, kind):
    assert smuggled.statuses_at(shop, smuggled.smuggled(kind)) == [400]


def test_a_key_is_asked_for_where_there_are_some(tmp_path):
    key = new_key("alice", tmp_path / "keys")
    with served_shop(keys=ApiKeys.open(tmp_path / "keys", {})) as (url, _):
        with pytest.raises(InvalidStatus, match="403"):
            told(url, reset())
        assert httpx2.get(f"{url}/metadata", trust_env=False).status_code == 401
        (begun,) = told(url, reset(), additional_headers={"Authorization": f"Bearer {key}"})
        assert begun["type"] == "observation"


class _Broken:
    """An environment whose steps hang, or whose world is lost."""

    def __init__(self, fault):
        self._fault = fault
        self.tool_results, self.answer, self.finish_reason = [], None, None

    def reset(self, task):
        return Opening(task.prompt, ())

    async def step(self, action):
        if self._fault == "lost":
            raise EnvironmentLostError("its node is gone")
        await asyncio.sleep(60)

    def cut_off(self, reason):
        self.finish_reason = reason

    def score(self):
        return {"outcome": 0.0}


@pytest.mark.parametrize("fault", ["lost", "hangs"])
def test_a_step_that_breaks_ends_its_episode_alone(fault):
    profile = shop_profile(step_timeout_s=0.2)
    tasks = {"train": Prices(profile).tasks("train", 3), "dev": [], "heldout": []}
    environments = dict.fromkeys(tasks, lambda task: _Broken(fault))
    served = ServedTasks(
        name="prices", instructions="", specs=(), tasks=tasks, environments=environments
    )
    with served_tasks(served, profile.serving.environments) as (url, _):
        _, ended, begun = told(url, reset(), call("price"), reset())
    if fault == "lost":
        assert ended["data"]["code"] == "EXECUTION_ERROR"
    else:
        assert ended["data"]["metadata"]["finish_reason"] == "timeout"
    assert begun["type"] == "observation"


def test_a_message_that_is_too_large_ends_its_session_alone(shop):
    with pytest.raises(ConnectionClosed):  # before all of it was sent, or after
        told(shop, "x" * (1 << 21))
    assert told(shop, reset())[0]["type"] == "observation"


def test_sockets_keep_the_places_of_their_connections():
    with served_shop(bounds=ServingConfig(max_connections=3, head_timeout_s=0.3)) as (url, _):
        (begun,) = told(url, reset(), after_s=0.6)  # longer than the head of a request may take
        assert begun["type"] == "observation"


def _until(holds, *, within_s=5.0):
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, f"not so after {within_s} s"
        time.sleep(0.01)
