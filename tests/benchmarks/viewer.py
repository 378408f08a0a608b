"""What the viewer takes on a large run: first replies, search, memory; and writing the streams.

    python -m tests.benchmarks.viewer [--attempts 200000] [--out /tmp/viewer-run]

The run is made from a seed: attempts of four messages with words drawn as in prose (few often, most
seldom) and of as many tokens as fill the size. The server is the real command, in a process of its
own. The last line of the output is one JSON object; seconds and MiB.
"""

import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import numpy as np

from espalier.records.episodes import EPISODES, episode_summary, packed
from espalier.records.streams import StreamRecord, StreamWriter

SECONDS = 1_796_000_000.0
TASKS, GROUP, GROUPS = 5000, 16, 25
"""400 attempts a step."""
BYTES_EACH = 5000
WORDS = 50_000
FOLLOWED = 20
"""Steps that are added, one a second, while a page of attempts is open."""
SHOWN = {"runs": ".badge", "overview": ".curve canvas", "attempts": "tbody tr"}
"""What a page shows first of the run itself."""


def vocabulary(dice):
    """Words of made-up syllables, the n-th of which is drawn with weight 1/n."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(WORDS)]
    total, weights = 0.0, []
    for place in range(1, WORDS + 1):
        total += 1 / place
        weights.append(total)
    return words, weights


def episode(dice, words, weights, step, task, sample):
    """The content of one attempt's record."""

    def text(length):
        return " ".join(dice.choices(words, cum_weights=weights, k=length))

    is_right = dice.random() < 0.4
    call = {"name": "search", "arguments": {"query": text(3)}, "result": text(90)}
    answer = text(2)
    sampled, read = 120, 180
    return {
        "time": SECONDS + step,
        "task_id": task,
        "group_id": task,
        "sample": sample,
        "policy_version": step - 1,
        "finish_reason": "answered" if dice.random() < 0.9 else "max_turns",
        "answer": answer,
        "reward": {"outcome": float(is_right), "format": 0.1},
        "messages": [
            {"role": "user", "content": f"what is {task} {text(12)}"},
            {"role": "assistant", "content": "", "thought": text(60), "tool_calls": [
                {"name": "search", "arguments": call["arguments"]}]},
            {"role": "tool", "content": call["result"]},
            {"role": "assistant", "content": answer, "thought": text(40)},
        ],
        "tool_calls": [{**call, "succeeded": True}],
        "turns": [[40, 100, 220, 0.0], [220, 280, 280, 0.0]],
        "window_starts": [0],
        "attempts": 1,
        "token_ids": packed(np.arange(sampled + read) * 7 % 49_000, "<i4"),
        "mask_runs": [read // 2, sampled // 2, read // 2, sampled // 2],
        "behavior_logprobs": packed(-np.arange(sampled) / 100, "<f4"),
        "trained": True,
        "advantages": packed(np.full(sampled, 0.5 if is_right else -0.3), "<f4"),
        "trainer_logprobs": packed(-np.arange(sampled) / 101, "<f4"),
        "loss_runs": [read // 2, sampled // 2, read // 2, sampled // 2],
    }  # fmt: skip


class LargeRun:
    """A run that grows by a step of 400 attempts at a time."""

    def __init__(self, folder, seed=0):
        self.dice = random.Random(seed)
        self.words, self.weights = vocabulary(self.dice)
        self.streams = folder / "trained_policy" / "streams"
        self.writer = StreamWriter(self.streams, EPISODES)
        self.steps = StreamWriter(self.streams, "steps")
        self.writer.keep_until(0)
        self.steps.keep_until(0)
        profile = {"environment": {"name": "search_qa"}, "training": {"steps": 1000}}
        (folder / "profile.json").write_text(json.dumps(profile))
        self.step, self.attempts, self.writing_s = 0, 0, 0.0

    def add_step(self):
        """Write a step's attempts and figures."""
        self.step += 1
        records = []
        for _ in range(GROUPS):
            task = f"train-{self.dice.randrange(TASKS):012x}"
            for sample in range(GROUP):
                content = episode(self.dice, self.words, self.weights, self.step, task, sample)
                records.append(StreamRecord(self.step, content, episode_summary(content)))
        began = time.perf_counter()
        self.writer.append(records)
        self.writing_s += time.perf_counter() - began
        figures = {"step": self.step, "reward": 0.4, "pass_rate": 0.4, "entropy": 1.0 / self.step}
        timings = {"step_s": 10.0, "rollout_s": 6.0, "update_s": 3.0}
        content = {"time": SECONDS + 10 * self.step, "figures": figures, "timings": timings}
        self.steps.append([StreamRecord(self.step, content)])
        self.attempts += len(records)

    def figures(self):
        """Attempts, bytes of the streams, and seconds per attempt of writing them."""
        size = sum(path.stat().st_size for path in self.streams.iterdir())
        each = self.writing_s / self.attempts
        return {"attempts": self.attempts, "bytes": size, "write_s_per_attempt": each}


def memory_mb(pid):
    """Peak and present resident memory of a process, MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if "VmRSS" in line
             or "VmHWM" in line}  # fmt: skip
    return {name: int(value) // 1024 for name, value in found.items()}


def cpu_s(pid):
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(client, path, times=1):
    """Median seconds of a request, and its answer."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        answer = client.get(path)
        seconds.append(time.perf_counter() - began)
        answer.raise_for_status()
    return round(statistics.median(seconds), 4), answer.json()


def served(folder, cache):
    """Start the command on a run; the process and its address."""
    script = "import sys\nfrom espalier_ui.commands import app\napp(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "ui", str(folder), "--port", "0", "--cache", str(cache),
         "--labels", str(cache / "labels.jsonl")],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    return process, process.stderr.readline().split()[-1]


REQUESTS = {
    "runs": "api/runs",
    "run": "api/runs/{run}",
    "steps": "api/runs/{run}/steps",
    "groups_of_a_step": "api/runs/{run}/groups?source=train&step=100",
    "newest_attempts": "api/runs/{run}/attempts?source=train&sort=-position&limit=50",
    "by_reward": "api/runs/{run}/attempts?source=train&sort=-reward&limit=50",
    "failures": "api/runs/{run}/failures?source=train",
    "histogram": "api/runs/{run}/histogram?source=train",
    "compare": "api/compare?side={run}:train:1-50&side={run}:train:400-450",
}


def measure(large, folder, cache):
    """Ask a fresh server, then one with an index, then one of a run that still grows."""
    figures = {}
    process, address = served(folder, cache)
    run = folder.name
    try:
        with httpx2.Client(base_url=address, timeout=120) as client:
            began = time.perf_counter()
            for name in ("runs", "run", "steps"):
                figures[f"first_{name}_s"], _ = timed(client, REQUESTS[name].format(run=run))
            figures["first_page_s"] = round(time.perf_counter() - began, 4)
            while True:
                _, live = timed(client, f"api/runs/{run}/live")
                if live["indexed"] == 1.0 and live["attempts"]:
                    break
                time.sleep(0.5)
            figures["indexed_after_s"] = round(time.perf_counter() - began, 1)
            # on a machine that is shared, processor time says more than the clock
            figures["indexing_cpu_s"] = round(cpu_s(process.pid), 1)
            for name, path in REQUESTS.items():
                before = cpu_s(process.pid)
                figures[f"{name}_s"], _ = timed(client, path.format(run=run), times=3)
                figures[f"{name}_cpu_s"] = round((cpu_s(process.pid) - before) / 3, 3)
            figures |= searches(client, run, process.pid)
        figures |= in_browser(large, address, run, process.pid)
        figures |= memory_mb(process.pid)
    finally:
        process.terminate()
        process.wait()
    return figures | restarted(folder, cache)


def searches(client, run, pid):
    """Seconds of searches for seldom and for frequent words, the largest of them."""
    words, _ = vocabulary(random.Random(0))
    asked = [words[0], words[5], words[200], words[5000], words[40_000], f"{words[1]} {words[2]}",
             f'"{words[0]} {words[1]}"', words[3000][:3], "nowordlikethis"]  # fmt: skip
    seconds, used = {}, []
    for text in asked:
        before = cpu_s(pid)
        seconds[text] = timed(client, f"api/runs/{run}/search?q={text.replace(' ', '+')}")[0]
        used.append(round(cpu_s(pid) - before, 2))
    total = client.get(f"api/runs/{run}/live").json()["attempts"]["train"]
    middle = f"api/runs/{run}/attempts?source=train&limit=1&offset={total // 2}"
    _, one = timed(client, middle)
    name = one["attempts"][0]["id"]
    return {
        "search_s": max(seconds.values()),
        "search_cpu_s": max(used),
        "search_median_s": statistics.median(seconds.values()),
        "attempt_s": timed(client, f"api/runs/{run}/attempts/{name}", times=5)[0],
        "tokens_s": timed(client, f"api/runs/{run}/attempts/{name}/tokens", times=5)[0],
    }


def in_browser(large, address, run, pid):
    """First paint and first row of pages, and what following a run takes of a processor."""
    chromium, api = shutil.which("chromium"), importlib.util.find_spec("playwright")
    if chromium is None or api is None:
        return {}
    from playwright.sync_api import sync_playwright

    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    figures = {}
    with sync_playwright() as play:
        page = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        for name, path in {
            "runs": "", "overview": f"?run={run}", "attempts": f"?run={run}&view=attempts",
        }.items():  # fmt: skip
            began = time.perf_counter()
            page.goto(f"{address.rstrip('/')}/{path}")
            page.wait_for_selector(SHOWN[name])
            figures[f"{name}_shown_s"] = round(time.perf_counter() - began, 3)
            figures[f"{name}_painted_s"] = round(page.evaluate(painted) / 1000, 3)
        before, began = cpu_s(pid), time.perf_counter()
        page.wait_for_timeout(1000 * FOLLOWED)
        figures["still_cpu_share"] = (cpu_s(pid) - before) / (time.perf_counter() - began)
        before, began = cpu_s(pid), time.perf_counter()
        for _ in range(FOLLOWED):
            large.add_step()
            page.wait_for_timeout(1000)
        used = cpu_s(pid) - before
        figures["followed_cpu_share"] = used / (time.perf_counter() - began)
        figures["followed_cpu_s_per_attempt"] = used / (FOLLOWED * GROUPS * GROUP)
    return figures


def restarted(folder, cache):
    """Seconds of a server that finds its index: stateless, and quick at once."""
    process, address = served(folder, cache)
    try:
        with httpx2.Client(base_url=address, timeout=120) as client:
            path = f"api/runs/{folder.name}/attempts?source=train&limit=50"
            return {"attempts_after_restart_s": timed(client, path)[0]}
    finally:
        process.terminate()
        process.wait()


def main():
    """Make the run, measure, and delete it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path("/tmp/viewer-benchmark"))
    given = parser.parse_args()
    folder, cache = given.out / "large", given.out / "cache"
    shutil.rmtree(given.out, ignore_errors=True)
    folder.mkdir(parents=True)
    cache.mkdir()
    try:
        large = LargeRun(folder)
        while large.attempts < given.attempts:
            large.add_step()
        figures = large.figures()
        figures |= measure(large, folder, cache)
        figures["index_bytes"] = sum(
            path.stat().st_size for path in cache.rglob("*") if path.is_file()
        )
    finally:
        shutil.rmtree(given.out)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
