"""Several servers as one engine: who is asked, and what becomes of those that are lost or come."""

import asyncio
import json
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from espalier.completions import routing
from espalier.completions.routing import addresses_of
from espalier.config import Profile, VllmConfig
from espalier.records import EngineError, PolicyError, tree_digest
from espalier.rollout.engines import vllm_pool
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.engines.shared_weights import share, share_base
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.fakes.vllm_double import running
from tests.unit.rollout.vllm_play import StopsAtOneId, policy_at

ACTION = 12


@pytest.fixture
def servers(policy_dir):
    with ExitStack() as stack:
        yield [stack.enter_context(running(policy_dir)) for _ in range(3)]


def engine_of(servers, **changes):
    settings = {"attempts": 2, "ready_timeout_s": 5, "request_timeout_s": 5} | changes
    config = VllmConfig(urls=tuple(server.url for server in servers), **settings)
    return VllmServerEngine(config, StopsAtOneId(), max_rows=64, backoff_s=0.001)


def asked(server):
    """The draws that sessions asked for, without the check of log-probs."""
    return [body for body in server.asked("/v1/completions") if body["top_k"] != 1]


def play(engine, policy_dir, script, *, prompts):
    """Run `script(session)` for a session of each prompt, all open at the same time."""

    async def episode(prompt, seed):
        session = await engine.open(prompt, Sampling(temperature=1.0, seed=seed))
        result = await script(session)
        session.close()
        return result

    async def rollout():
        await engine.load_weights(policy_dir, 1)
        async with engine.serving():
            return await asyncio.gather(*(episode(p, seed) for seed, p in enumerate(prompts)))

    return asyncio.run(rollout())


async def two_turns(session):
    first = await session.sample(max_tokens=ACTION)
    session.observe([4, 4])
    return first, await session.sample(max_tokens=ACTION)


def test_sessions_spread_and_equal_prompts_share_a_server(servers, policy_dir):
    prompts = [[1, task] for task in range(12) for _ in range(2)]
    play(engine_of(servers), policy_dir, two_turns, prompts=prompts)
    shares = [len(asked(server)) for server in servers]
    assert sum(shares) == 2 * len(prompts)
    assert max(shares) <= 1.5 * sum(shares) / len(servers)
    apart = Counter(
        task for server in servers for task in {tuple(body["prompt"][:2]) for body in asked(server)}
    )
    assert sum(apart.values()) <= 1.5 * len(apart), "few tasks are on more than one server"


def test_one_prompt_alone_does_not_crowd_one_server(servers, policy_dir):
    play(engine_of(servers), policy_dir, two_turns, prompts=[[1, 2, 3]] * 30)
    assert max(len(asked(server)) for server in servers) <= 0.5 * 60


def test_servers_load_copies_in_the_folder_that_they_see(servers, policy_dir, tmp_path):
    shared = tmp_path / "shared"
    engine = engine_of(servers, shared_dir=shared)
    with pytest.raises(EngineError, match="shared_dir"):
        play(engine, policy_dir, two_turns, prompts=[[1]])
    shared.mkdir()
    for version in range(6):
        policy = policy_at(tmp_path / f"version-{version}", weights=str(version).encode())
        play(engine, policy, two_turns, prompts=[[1], [2]])
        (loaded,) = {Path(server.weights) for server in servers}
        assert loaded.parent == shared
        assert tree_digest(loaded) == tree_digest(policy)
    assert loaded in shared.iterdir()
    assert len(list(shared.glob("policy-*"))) == 4, "former versions do not fill the volume"


def profile_with(shared_dir, exchange):
    vllm = {"urls": ["http://rollout:8000"], "exchange": exchange, "shared_dir": shared_dir}
    lora = {"lora": {"rank": 8}, "model": "model"} if exchange == "adapter" else {}
    return Profile.model_validate({"rollout": {"engine": "vllm", "vllm": vllm}, "policy": lora})


def test_another_base_replaces_no_base_of_adapters(tmp_path):
    """A server that has read the former one would add the adapters to it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    former = policy_at(tmp_path / "former", weights=b"former")
    latter = policy_at(tmp_path / "latter", weights=b"latter")
    for _ in range(2):
        share_base(former, profile_with(shared, "adapter"))
    with pytest.raises(EngineError, match="other weights"):
        share_base(latter, profile_with(shared, "adapter"))
    assert tree_digest(shared / "base") == tree_digest(former)
    share_base(latter, profile_with(shared, "weights"))
    assert tree_digest(shared / "base") == tree_digest(latter)
    assert {path.name for path in shared.iterdir()} == {".lock", "base"}


def test_engines_that_share_at_once_lose_nothing(tmp_path):
    shared = tmp_path / "shared"
    (shared / ".unseen-killed").mkdir(parents=True)
    policies = [policy_at(tmp_path / f"p{n}", weights=bytes([n])) for n in range(3)]
    with ThreadPoolExecutor(6) as pool:
        copies = list(pool.map(lambda policy: share(policy, shared), policies * 40))
    for policy, copy in zip(policies * 40, copies, strict=True):
        assert tree_digest(copy) == tree_digest(policy)
    assert len(list(shared.iterdir())) == 1 + len(policies)


def test_a_turn_depends_on_no_server(servers, policy_dir):
    prompts = [[1, task] for task in range(8)]
    alone = play(engine_of(servers[:1]), policy_dir, two_turns, prompts=prompts)
    assert play(engine_of(servers), policy_dir, two_turns, prompts=prompts) == alone


@pytest.mark.parametrize("how", ["dead", "hangs", "restarted"])
def test_episodes_of_a_lost_server_go_on_elsewhere(servers, policy_dir, how):
    prompts = [[1, task] for task in range(30)]
    expected = play(engine_of(servers[:1]), policy_dir, two_turns, prompts=prompts)
    engine = engine_of(servers, request_timeout_s=0.3)
    lost, turns = servers[1], 0
    servers[0].seen.clear()

    async def script(session):
        nonlocal turns
        first = await session.sample(max_tokens=ACTION)
        turns += 1
        while turns < len(prompts):  # every session has a turn behind it
            await asyncio.sleep(0.001)
        if how == "dead":
            lost.is_dead = True
        if how == "hangs":
            lost.answers["/v1/completions"] = [("slow", 1.0)] * 99
            lost.answers["/health"] = [("slow", 9.0)] * 99
        if how == "restarted" and lost.starts == 1:
            lost.restart()
        session.observe([4, 4])
        return first, await session.sample(max_tokens=ACTION)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_pool, "_LOOKS_EVERY_S", 60)
        patch.setattr("espalier.rollout.engines.vllm_client._HEALTH_WITHIN_S", 0.1)
        assert play(engine, policy_dir, script, prompts=prompts) == expected
    assert engine.pool.lost == 1
    assert len(engine.pool.usable) == 2
    repeated = [tuple(b["prompt"]) for s in servers if s is not lost for b in asked(s)]
    assert len(repeated) == len(set(repeated)), "no turn was drawn twice"


def test_the_last_server_lost_is_named_with_its_fault(servers, policy_dir):
    engine = engine_of(servers)

    async def script(session):
        for server in servers:
            server.is_dead = True
        await session.sample(max_tokens=ACTION)

    with pytest.raises(EngineError, match=r"failed 2 times"):
        play(engine, policy_dir, script, prompts=[[1]])


def test_a_moment_without_any_server_ends_no_rollout(servers, policy_dir):
    prompts, ready = [[1, task] for task in range(8)], []
    engine, returning = engine_of(servers, attempts=12), []

    def power(*, is_on):
        for server in servers:
            server.is_dead = not is_on

    async def come_back():
        while engine.pool.lost < len(servers) - 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.3)
        power(is_on=True)

    async def script(session):
        first = await session.sample(max_tokens=ACTION)
        session.observe([4, 4])
        own = asyncio.Event()
        ready.append(own)
        if len(ready) == len(prompts):
            power(is_on=False)
            returning.append(asyncio.create_task(come_back()))
            for waits in ready:  # all ask at once
                waits.set()
        await own.wait()
        return first, await session.sample(max_tokens=ACTION)

    expected = play(engine_of(servers[:1]), policy_dir, two_turns, prompts=prompts)
    assert play(engine, policy_dir, script, prompts=prompts) == expected


def test_a_server_that_returns_gets_the_weights_first(servers, policy_dir, monkeypatch):
    monkeypatch.setattr(vllm_pool, "_LOOKS_EVERY_S", 0.02)
    gone = servers[2]
    gone.is_dead = True
    monkeypatch.setattr(vllm_pool, "_OTHERS_WITHIN_S", 0.05)
    engine = engine_of(servers)

    async def script(session):
        await session.sample(max_tokens=ACTION)
        gone.restart()
        while len(engine.pool.usable) < 3:
            await asyncio.sleep(0.01)

    play(engine, policy_dir, script, prompts=[[1, task] for task in range(6)])
    assert gone.version == servers[0].version != "default"
    assert asked(gone) == []
    play(engine, policy_dir, two_turns, prompts=[[1, task] for task in range(60)])
    assert asked(gone), "by chance of ports a few prompts may all be at the other two"
    assert {body["cache_salt"] for body in asked(gone)} == {gone.version}


def test_a_newcomer_of_another_shape_is_left_out(servers, policy_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_pool, "_LOOKS_EVERY_S", 0.02)
    monkeypatch.setattr(vllm_pool, "_OTHERS_WITHIN_S", 0.05)
    comes, right = servers[2], servers[2].root
    comes.is_dead = True
    engine = engine_of(servers)

    async def script(session):
        comes.root = policy_at(tmp_path / "other", hidden_size=7)
        comes.restart()
        while len(comes.asked("/v1/models")) < 2:  # it is tried again
            await asyncio.sleep(0.01)
        assert comes.url not in {server.url for server in engine.pool.usable}
        comes.root = right
        while len(engine.pool.usable) < 3:
            await asyncio.sleep(0.01)

    play(engine, policy_dir, script, prompts=[[1]])


def test_a_newcomer_gets_weights_that_change_while_it_is_checked(
    servers, policy_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(vllm_pool, "_LOOKS_EVERY_S", 0.02)
    monkeypatch.setattr(vllm_pool, "_OTHERS_WITHIN_S", 1.0)
    comes, engine, newer = servers[2], engine_of(servers), policy_at(tmp_path / "newer", b"newer")
    comes.is_dead = True
    is_checked, goes_on = threading.Event(), threading.Event()

    def hold(path):
        if path == "/v1/completions":
            is_checked.set()
            assert goes_on.wait(5)

    comes.on_request = hold

    async def script(session):
        comes.restart()
        while not is_checked.is_set():
            await asyncio.sleep(0.01)
        await engine.load_weights(newer, 2)
        goes_on.set()
        while not comes.asked("/v1/completions") or not engine.pool.servers[comes.url].is_ready:
            await asyncio.sleep(0.01)
        assert comes.version == servers[0].version
        assert {server.loaded.number for server in engine.pool.usable} == {2}

    play(engine, policy_dir, script, prompts=[[1]])


def test_a_server_restarted_between_rollouts_gets_the_weights_again(servers, policy_dir):
    engine = engine_of(servers)

    async def rollouts():
        await engine.load_weights(policy_dir, 1)
        servers[0].restart()
        async with engine.serving():
            assert servers[0].version == servers[1].version

    asyncio.run(rollouts())


@pytest.mark.parametrize("exchange", ["weights", "adapter"])
def test_a_server_restarted_unnoticed_answers_nothing(servers, policy_dir, exchange):
    """Nobody asks it while it is away, so that no request fails."""
    engine, restarted = engine_of(servers, exchange=exchange), servers[0]
    with_adapter(policy_dir, b"1")

    async def script(session):
        first = await session.sample(max_tokens=ACTION)
        if restarted.starts == 1:
            restarted.restart()
            restarted.seen.clear()
        return first, await session.sample(max_tokens=ACTION)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_pool, "_LOOKS_EVERY_S", 60)
        turns = play(engine, policy_dir, script, prompts=[[1, task] for task in range(30)])
    assert engine.pool.lost == 1
    assert {p for turn in turns for action in turn for p in action.logprobs} == {-0.25}


def test_a_server_alone_that_was_restarted_ends_the_rollout(servers, policy_dir):
    async def script(session):
        await session.sample(max_tokens=ACTION)
        servers[0].restart()
        await session.sample(max_tokens=ACTION)

    with pytest.raises(EngineError, match="was restarted"):
        play(engine_of(servers[:1]), policy_dir, script, prompts=[[1]])


@pytest.mark.parametrize("version", ["default", "3-another"])
def test_weights_that_changed_while_sampling_end_the_rollout(servers, policy_dir, version):
    async def script(session):
        await session.sample(max_tokens=ACTION)
        servers[1].version = version

    with pytest.raises(EngineError, match=version):
        play(engine_of(servers), policy_dir, script, prompts=[[1]])


def test_a_server_of_another_model_is_refused(servers, policy_dir):
    servers[1].answers["/v1/models"] = [(200, {"data": [{"id": "judge", "root": "/"}]})]
    with pytest.raises(EngineError, match=r"serves judge, not 'policy'"):
        play(engine_of(servers), policy_dir, two_turns, prompts=[[1]])


def with_adapter(policy_dir, weights):
    folder = policy_dir / "adapter"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return policy_dir


def test_adapters_are_exchanged_and_old_ones_go(servers, tmp_path):
    engine = engine_of(servers, exchange="adapter")
    for version in range(4):
        directory = with_adapter(policy_at(tmp_path / f"v{version}"), b"%d" % version)
        asyncio.run(engine.load_weights(directory, version))
    for server in servers:
        assert [name.split("-")[1] for name in server.adapters] == ["2", "3"]
        assert server.weights == server.root, "the base model stays"
        assert not server.asked("/pause?mode=wait")
    play(engine, directory, two_turns, prompts=[[1, task] for task in range(6)])
    names = {body["model"] for server in servers for body in asked(server)}
    assert len(names) == 1
    assert names.pop().startswith("policy-1-")


def test_without_an_adapter_only_the_base_model_is_sampled_from(servers, policy_dir, tmp_path):
    engine = engine_of(servers, exchange="adapter")
    play(engine, policy_dir, two_turns, prompts=[[1, task] for task in range(6)])
    assert {body["model"] for server in servers for body in asked(server)} == {"policy"}
    with pytest.raises(PolicyError, match="exchange"):
        asyncio.run(engine.load_weights(policy_at(tmp_path / "other", weights=b"others"), 1))


def test_servers_without_adapters_say_how_to_start_them(servers, policy_dir):
    for server in servers:
        server.answers["/v1/load_lora_adapter"] = [(404, {"detail": "Not Found"})]
    with pytest.raises(EngineError, match="--enable-lora"):
        asyncio.run(
            engine_of(servers, exchange="adapter").load_weights(with_adapter(policy_dir, b"1"), 1)
        )


def test_a_name_is_the_servers_at_its_addresses(monkeypatch):
    """One address too: a server that stays while others come and go is one server all the time."""
    behind = {"pool": ["10.0.0.2", "10.0.0.1"], "one": ["10.0.0.1"], "six": ["fd00::1"]}

    async def found(host, port, **_):
        family = socket.AF_INET6 if host == "six" else socket.AF_INET
        return [(family, 1, 6, "", (address, port)) for address in behind[host]]

    async def resolved(url):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        return list(await addresses_of(url))

    first, second = "http://10.0.0.1:8000", "http://10.0.0.2:8000"
    assert asyncio.run(resolved("http://pool:8000")) == [first, second]
    assert asyncio.run(resolved("http://one:8000")) == [first]
    assert asyncio.run(resolved("http://six:8000")) == ["http://[fd00::1]:8000"]
    for address in ("https://pool:8000", "http://127.0.0.1:1", "http://[fd00::1]:1"):
        assert asyncio.run(resolved(address)) == [address]


def test_an_unknown_name_has_no_servers_and_is_named():
    name = "http://no-such-host.invalid:8000"
    assert asyncio.run(addresses_of(name)) == []
    config = VllmConfig(urls=(name,), ready_timeout_s=0.1)
    engine = VllmServerEngine(config, StopsAtOneId(), max_rows=1)
    with pytest.raises(EngineError, match=r"invalid:8000: the host name has no address"):
        asyncio.run(engine.load_weights(Path("none"), 1))


def test_a_service_without_servers_is_waited_for(servers, policy_dir, monkeypatch):
    """Its name has no address before its first pod; each server is told the name."""
    answers = [[], [], [servers[0].url]]

    async def behind(url):
        assert url == "http://pool:8000"
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(routing, "addresses_of", behind)
    engine = engine_of([SimpleNamespace(url="http://pool:8000")])
    play(engine, policy_dir, two_turns, prompts=[[1, 2]])
    assert list(engine.pool.servers) == [servers[0].url]
    assert servers[0].hosts == {"pool:8000"}
