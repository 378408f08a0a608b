import asyncio
import math
from pathlib import Path

import pytest

from espalier.config import VllmConfig
from espalier.records import EngineError, HungError, PolicyError
from espalier.rollout.engines.engine import KindChoice, Sampling
from espalier.rollout.engines.vllm import VllmServerEngine
from tests.fakes.vllm_double import KIND_IDS, STOP_ID, THOUGHT_ID, completion, running
from tests.unit.rollout.vllm_play import StopsAtOneId, engine_of, play, policy_at, sample_once


def test_an_action_is_the_sampled_ids_until_a_stop(server, policy_dir):
    engine = engine_of(server)
    action = play(engine, policy_dir, sample_once())
    sampled = len(action.token_ids)
    assert action.token_ids[-1] == STOP_ID
    assert action.stopped
    assert action.logprobs == (-0.25,) * sampled
    counters = engine.counters  # by the server's usage
    assert (counters.sampled, counters.unique) == (sampled, 3 + sampled)
    assert counters.forwarded == 3 - 1 + sampled - 1
    cut = play(engine, policy_dir, sample_once(sampled - 1))
    assert cut.token_ids == action.token_ids[:-1]
    assert not cut.stopped


def test_a_request_carries_ids_and_the_whole_of_the_sampling(server, policy_dir):
    sampling = Sampling(temperature=0.7, seed=4, top_p=0.9, top_k=20)
    play(engine_of(server), policy_dir, sample_once(), sampling)
    asked = {
        "prompt": [1, 2, 3],
        **{"temperature": 0.7, "top_p": 0.9, "top_k": 20},
        **{"stop_token_ids": [STOP_ID], "stop": ["</answer>"]},
        **{"include_stop_str_in_output": True, "ignore_eos": True, "return_token_ids": True},
    }
    assert asked.items() <= server.asked("/v1/completions")[-1].items()


def test_the_next_request_repeats_sampled_and_observed_ids_unchanged(server, policy_dir):
    async def two_turns(session):
        first = await session.sample(max_tokens=40)
        session.observe([4, 4])
        await session.sample(max_tokens=40)
        return first

    first = play(engine_of(server), policy_dir, two_turns)
    one, two = server.asked("/v1/completions")[-2:]
    assert two["prompt"] == [1, 2, 3, *first.token_ids, 4, 4]
    assert two["seed"] != one["seed"]
    assert two["cache_salt"] == one["cache_salt"] == server.version


def test_the_draw_depends_on_seed_and_position_only(server, policy_dir):
    engine = engine_of(server)
    for seed in (4, 4, 5):
        play(engine, policy_dir, sample_once(), Sampling(temperature=1.0, seed=seed))
    drawn = [body for body in server.asked("/v1/completions") if body["top_k"] != 1]
    assert drawn[0]["seed"] == drawn[1]["seed"] != drawn[2]["seed"]


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 0.25])
def test_action_kinds_are_drawn_and_recorded_under_the_mixture(server, policy_dir, epsilon):
    server.logprob = math.log(0.5)
    choice = KindChoice(epsilon=epsilon, after_id=THOUGHT_ID, kind_ids=KIND_IDS)
    sampling = Sampling(temperature=1.0, seed=2, kind_choice=choice)
    action = play(engine_of(server), policy_dir, sample_once(), sampling)
    at = action.token_ids.index(THOUGHT_ID) + 1
    uniform = 0.5 if action.token_ids[at] in KIND_IDS else 0.0
    expected = math.log((1 - epsilon) * 0.5 + epsilon * uniform)
    assert action.logprobs[at] == pytest.approx(expected)
    assert action.token_ids[at] in KIND_IDS or epsilon < 1
    assert action.token_ids[-1] == STOP_ID


def test_loaded_weights_are_those_that_the_server_then_names(server, policy_dir, tmp_path):
    engine = engine_of(server)
    newer = policy_at(tmp_path / "newer", weights=b"others")
    asyncio.run(engine.load_weights(newer, 7))
    assert server.weights == str(newer)
    assert server.version.startswith("7-")
    assert engine.policy_version == 7
    order = [seen.split("?")[0].split()[1] for seen, _, _ in server.seen]
    assert order.index("/pause") < order.index("/collective_rpc") < order.index("/resume")
    assert order.index("/reset_prefix_cache") < order.index("/resume")


@pytest.mark.parametrize("keeps_cache", [False, True])
def test_no_turn_reads_keys_of_former_weights(server, tmp_path, keeps_cache):
    """Also where the server only says that it dropped its cache (SkyRL#2246, NeMo-RL#4018)."""
    server.keeps_cache = keeps_cache
    engine = engine_of(server)
    versions = [policy_at(tmp_path / f"v{n}", weights=f"{n}".encode()) for n in range(20)]

    async def episodes():
        found = []
        await engine.load_weights(versions[0], 0)
        async with engine.serving():
            for number, policy_dir in enumerate(versions[1:], 1):
                session = await engine.open([1, 2, 3], Sampling(temperature=0.7, seed=4))
                found += (await session.sample(max_tokens=9)).logprobs
                session.observe([4, 4])
                found += (await session.sample(max_tokens=9)).logprobs
                await engine.load_weights(policy_dir, number)
                session.observe([5])
                found += (await session.sample(max_tokens=9)).logprobs
                session.close()
        return found

    assert set(asyncio.run(episodes())) == {-0.25}
    assert server.cache_hits == 19, "the second turn of each episode alone"


def test_policies_of_another_shape_or_without_weights_are_not_loaded(server, tmp_path):
    wider = policy_at(tmp_path / "wider", hidden_size=64)
    for refused, named in ((wider, "hidden_size"), (tmp_path, tmp_path.name)):
        with pytest.raises(PolicyError, match=named):
            asyncio.run(engine_of(server).load_weights(refused, 1))
    assert server.weights != str(wider)


def test_a_cpu_server_refuses_to_exchange_tied_weights(tmp_path):
    started = policy_at(tmp_path / "started", tie_word_embeddings=True)
    newer = policy_at(tmp_path / "newer", weights=b"others", tie_word_embeddings=True)
    with running(started) as server:
        server.on_cpu = True
        engine = engine_of(server)
        asyncio.run(engine.load_weights(started, 0))
        with pytest.raises(PolicyError, match="tied"):
            asyncio.run(engine.load_weights(newer, 1))
        assert server.weights == started


def test_a_failed_exchange_lets_the_server_go_on(server, policy_dir):
    server.answers["/collective_rpc"] = [(500, {"error": "no such tensor"})] * 3
    with pytest.raises(EngineError, match="no such tensor"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))
    assert server.seen[-1][0] == "POST /resume"


def test_a_server_that_keeps_its_cache_is_refused(server, policy_dir):
    server.answers["/reset_prefix_cache"] = [(200, {"success": False})]
    with pytest.raises(EngineError, match="kept its prefix cache"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))
    assert not server.is_paused


def test_weights_that_vanish_before_they_are_read_are_named(server, tmp_path):
    engine = engine_of(server)
    newer, away = policy_at(tmp_path / "version-7"), tmp_path / "away"

    def take_away(path):
        if path == "/pause":
            newer.rename(away)

    server.on_request = take_away
    with pytest.raises(EngineError, match=r"weights of version 7: .*/collective_rpc.*version-7"):
        asyncio.run(engine.load_weights(newer, 7))
    assert not server.is_paused
    server.on_request = lambda path: None
    away.rename(newer)
    assert play(engine, newer, sample_once()).token_ids
    assert server.weights == str(newer)


@pytest.mark.parametrize("exchanged", ["at the start", "in the middle", "not even loaded"])
def test_weights_that_another_run_or_none_loaded_are_noticed(server, policy_dir, exchanged):
    async def episode():
        engine = engine_of(server)
        if exchanged != "not even loaded":
            await engine.load_weights(policy_dir, 1)
        if exchanged == "at the start":
            server.version = "3-another"
        async with engine.serving():
            server.version = "3-another"

    named = "load_weights" if exchanged == "not even loaded" else "'3-another'"
    with pytest.raises(EngineError, match=named):
        asyncio.run(episode())


def test_server_errors_are_tried_again_and_then_named(server, policy_dir):
    server.answers["/weight_info"] = [("break", None), (503, {"error": "starting"})]
    assert play(engine_of(server), policy_dir, sample_once()).token_ids
    server.answers["/weight_info"] = [(500, {"error": "EngineCore died"})] * 3
    with pytest.raises(EngineError, match=r"3 times.*EngineCore died"):
        asyncio.run(engine_of(server).load_weights(policy_dir, 1))


@pytest.mark.parametrize(
    ("path", "answer", "settings", "named"),
    [
        ("/v1/models", ("slow", 0.5), {"request_timeout_s": 0.1}, r"0\.1 s"),
        ("/pause", ("slow", 0.5), {"request_timeout_s": 0.1}, r"version 1: .*/pause.*0\.1 s"),
        ("/collective_rpc", (404, {"detail": "Not Found"}), {}, "VLLM_SERVER_DEV_MODE"),
        ("/none", None, {"model": "judge"}, r"policy.*'judge'"),
        ("/none", None, {"key_file": Path("nokey")}, "nokey"),
    ],
)
def test_what_is_wrong_with_a_server_is_named(server, policy_dir, path, answer, settings, named):
    server.answers[path] = [answer]
    with pytest.raises(EngineError, match=named):
        asyncio.run(engine_of(server, **settings).load_weights(policy_dir, 1))


def test_an_unreachable_server_is_awaited_and_then_named(policy_dir):
    config = VllmConfig(urls=("http://127.0.0.1:9",), ready_timeout_s=0.05)
    engine = VllmServerEngine(config, StopsAtOneId(), max_rows=1)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9: .*0\.05 s"):
        asyncio.run(engine.load_weights(policy_dir, 0))


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache"])
def test_an_exchange_of_weights_that_hangs_is_named(server, policy_dir, path):
    server.answers[path] = [("slow", 2.0)]
    with pytest.raises(HungError, match=f"version 7 .*{path}.* 1 s"):
        asyncio.run(engine_of(server, exchange_timeout_s=1.0).load_weights(policy_dir, 7))


def test_raw_log_probs_are_refused(server, policy_dir):
    raw = completion({"prompt": [0, 0], "seed": 0, "max_tokens": 1, "top_k": 0}, -3.0)
    server.answers["/v1/completions"] = [(200, raw)]
    with pytest.raises(EngineError, match="processed_logprobs"):
        play(engine_of(server), policy_dir, sample_once())


def _changed(**changes):
    answer = completion({"prompt": [1], "seed": 0, "max_tokens": 2})
    answer["choices"][0] |= changes
    return answer


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (_changed(logprobs=None), "no log-probs"),
        (_changed(token_ids=None), "no token ids"),
        (_changed(token_ids=[1, 2, 3]), "3 token ids .*2 log-probs"),
        (_changed(finish_reason="abort"), "off"),
        ({"choices": "none"}, "protocol"),
        (_changed() | {"model": "other"}, "'other'"),
        (b"<html>", "JSON"),
        ([1, 2], "JSON object"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused(server, policy_dir, answer, complaint):
    async def spoiled(session):
        server.answers["/v1/completions"] = [(200, answer)]
        await session.sample(max_tokens=2)

    with pytest.raises(EngineError, match=complaint):
        play(engine_of(server), policy_dir, spoiled)


def test_the_key_goes_to_the_server_and_into_no_message(server, policy_dir, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text("s3cret\n")
    server.answers["/weight_info"] = [(401, {"error": "Unauthorized"})]
    engine = engine_of(server, key_file=key_file)
    with caplog.at_level("DEBUG"), pytest.raises(EngineError, match="key_file") as raised:
        asyncio.run(engine.load_weights(policy_dir, 1))
    assert {key for _, _, key in server.seen} == {"Bearer s3cret"}
    assert "s3cret" not in caplog.text + str(raised.value) + repr(raised.value.__cause__)


def tell_versions(server):
    """Let the log-probs say which of the policies `v0`, `v1` ... it samples from."""

    def number():
        _, _, found = str(server.weights).rpartition("/v")
        return int(found) if found.isdecimal() else 0

    server.logprob_of = lambda _: -0.01 * (1 + number())


@pytest.fixture
def versions(tmp_path):
    return [policy_at(tmp_path / f"v{n}", weights=b"%d" % n) for n in range(2)]


def turns_of(server):
    return [body for body in server.asked("/v1/completions") if body["top_k"] != 1]


async def cut_turn(server, versions, engine, sampling):
    """Sample one action, in whose first request the second version is loaded."""
    server.on_request = lambda path: path == "/resume" and server.finish()
    await engine.load_weights(versions[0], 0)
    async with engine.serving():
        session = await engine.open([1, 2, 3], sampling)
        server.turn_s = 30.0
        turn = asyncio.create_task(session.sample(max_tokens=12))
        while not server.under_way:
            await asyncio.sleep(0.001)
        await engine.load_weights(versions[1], 1)
        action = await turn
        session.close()
    return action


def test_a_cut_turn_goes_on_with_the_new_weights(server, versions):
    """Each token says what sampled it, and nothing is read from the old weights' cache."""
    tell_versions(server)
    sampling = Sampling(temperature=1.0, seed=4)
    engine = engine_of(server, request_timeout_s=60)
    action = asyncio.run(cut_turn(server, versions, engine, sampling))
    assert action.versions == tuple(sorted(action.versions))
    assert set(action.versions) == {0, 1}
    for version, logprob in zip(action.versions, action.logprobs, strict=True):
        assert logprob == pytest.approx(-0.01 * (1 + version))
    first, second = turns_of(server)
    kept = action.versions.count(0)
    assert second["prompt"] == [*first["prompt"], *action.token_ids[:kept]]
    assert first["cache_salt"] != second["cache_salt"] == server.version


def test_a_request_too_late_for_old_weights_is_repeated(server, versions):
    tell_versions(server)
    engine, sampling = engine_of(server), Sampling(temperature=1.0, seed=4)

    async def episode():
        await engine.load_weights(versions[0], 0)
        async with engine.serving():
            session = await engine.open([1, 2, 3], sampling)
            server.is_paused = True  # it waits there when the exchange begins
            turn = asyncio.create_task(session.sample(max_tokens=12))
            while not turns_of(server):
                await asyncio.sleep(0.001)
            await engine.load_weights(versions[1], 1)
            action = await turn
            session.close()
        return action

    action = asyncio.run(episode())
    assert set(action.versions) == {1}
    assert set(action.logprobs) == {-0.02}
    assert [body["cache_salt"][0] for body in turns_of(server)] == ["0", "1"]


def test_a_stop_text_that_a_cut_divides_ends_the_action(server, versions):
    """The server looks for it in the tokens of one request alone, where ids only rise."""

    class EndsWhereIdsFall(StopsAtOneId):
        def ends_action(self, action_ids):
            return list(action_ids[-2:]) != sorted(set(action_ids[-2:]))

    tell_versions(server)
    config = VllmConfig(urls=(server.url,), attempts=3, ready_timeout_s=5, request_timeout_s=60)
    engine = VllmServerEngine(config, EndsWhereIdsFall(), max_rows=4, backoff_s=0.001)
    fell = 0
    for seed in range(8):
        sampling = Sampling(temperature=1.0, seed=seed)
        action = asyncio.run(cut_turn(server, versions, engine, sampling))
        kept = action.versions.count(0)
        if kept and action.token_ids[kept] <= action.token_ids[kept - 1]:
            fell += 1
            assert action.stopped
            assert len(action.token_ids) == kept + 1
        assert len(action.token_ids) == len(action.logprobs) == len(action.versions)
    assert fell, "no action had its end at the cut"


def test_an_adapter_stays_until_its_requests_have_ended(server, tmp_path):
    directories = []
    for number in range(4):
        directories.append(policy_at(tmp_path / f"v{number}"))
        adapter = directories[-1] / "adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text("{}")
        (adapter / "adapter_model.safetensors").write_bytes(b"%d" % number)
    engine = engine_of(server, exchange="adapter", request_timeout_s=60)

    async def episode():
        await engine.load_weights(directories[0], 0)
        async with engine.serving():
            session = await engine.open([1], Sampling(temperature=1.0, seed=4))
            server.turn_s = 30.0
            turn = asyncio.create_task(session.sample(max_tokens=4))
            while not server.under_way:
                await asyncio.sleep(0.001)
            for number in (1, 2):
                await engine.load_weights(directories[number], number)
            names = [name.split("-")[1] for name in server.adapters]
            server.finish()
            old = await turn
            new = await session.sample(max_tokens=4)
            await engine.load_weights(directories[3], 3)
            session.close()
            return names, old, new

    names, old, new = asyncio.run(episode())
    assert names == ["0", "1", "2"], "the first one is still asked"
    assert (set(old.versions), set(new.versions)) == ({0}, {2})
    assert [name.split("-")[1] for name in server.adapters] == ["2", "3"]
