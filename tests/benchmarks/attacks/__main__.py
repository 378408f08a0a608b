"""What do hostile programs achieve, in each kind of sandbox?

    python -m tests.benchmarks.attacks --backends local,podman
    python -m tests.cluster run python -m tests.benchmarks.attacks --backends "pods on runc"

All of it runs inside a network namespace that it makes for itself, or inside that of the tests' own
cluster: no packet can leave. A network attack counts only where the same program, outside of any
sandbox, reaches its target. Prints a table, and JSON in its last line; ends with 1 if anything was
not contained. Programs name system calls of x86_64.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from espalier.config import SandboxPodsConfig
from espalier.config.cluster import amount
from espalier.sandbox import Backend, SandboxUnavailable
from tests.benchmarks.attacks import (
    breaking_out,
    control,
    dodging,
    further,
    network_and_others,
    targets,
    using_up,
)
from tests.benchmarks.attacks.attack import LIMITS, Attack
from tests.benchmarks.attacks.judging import Verdict, judge, neighbour_of
from tests.benchmarks.keeping import provenance
from tests.integration.sandbox.backends import BACKENDS, AbsentError, first_that_works

ATTACKS: tuple[Attack, ...] = (
    *using_up.ATTACKS,
    *breaking_out.ATTACKS,
    *network_and_others.ATTACKS,
    *dodging.ATTACKS,
    *further.ATTACKS,
)
_CONTROLS_AT_ONCE = 4
_INSIDE = "ESPALIER_ATTACKS_INSIDE"
_OWN_CLUSTER = "ESPALIER_TEST_CLUSTER"
"""Set inside the cluster that tests/cluster started; no other is attacked."""

_GVISOR = "pods on gVisor"
_MOST_BYTES = 768 * 2**20
_MOST_BYTES_ON_GVISOR = int(amount(SandboxPodsConfig().resources.memory_limit))
"""What folders may take: gVisor's own /dev/shm has no size but the memory of its pod."""


def main() -> int:
    """Enter the network without a way out, then attack."""
    options = _options()
    names = options.backends.split(",")
    if unknown := set(names) - BACKENDS.keys():
        sys.exit(f"no backend {sorted(unknown)}; there are {', '.join(BACKENDS)}")
    if any(name.startswith("pods") for name in names) and _OWN_CLUSTER not in os.environ:
        sys.exit("pods are attacked on no cluster but the tests' own: python -m tests.cluster run")
    if _INSIDE not in os.environ and _OWN_CLUSTER not in os.environ:
        return _enter_own_network()
    if targets.has_way_out():
        sys.exit("this network has a way out; nothing hostile is started in it")
    targets.make_network()
    try:
        with targets.planted(control_plane=_OWN_CLUSTER not in os.environ) as aims:
            verdicts = asyncio.run(_attack_all(names, options.only, aims))
    finally:
        targets.remove_network()
    return _report(verdicts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backends", default="local", help=f"of {', '.join(BACKENDS)}")
    parser.add_argument("--only", default="", help="attacks whose kind or name has this in it")
    return parser.parse_args()


def _enter_own_network() -> int:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    again = [sys.executable, "-m", "tests.benchmarks.attacks", *sys.argv[1:]]
    command = ["unshare", *as_root, "--net", "--", *again]
    return subprocess.run(command, env=os.environ | {_INSIDE: "1"}, check=False).returncode


async def _attack_all(
    names: list[str], only: str, aims: dict[str, object]
) -> dict[str, dict[Attack, Verdict]]:
    chosen = [attack for attack in ATTACKS if only in f"{attack.point} {attack.kind} {attack.name}"]
    found: dict[str, dict[Attack, Verdict]] = {}
    with ThreadPoolExecutor(_CONTROLS_AT_ONCE) as several:
        controls = several.map(partial(control.succeeds, targets=aims), chosen)
        held = dict(zip(chosen, controls, strict=True))
    print(f"{sum(held.values())} of {len(held)} have a positive control", flush=True)
    for name in names:
        try:
            backend = await first_that_works(BACKENDS[name](LIMITS))
        except (AbsentError, SandboxUnavailable) as error:
            print(f"{name}: absent, {error}", flush=True)
            continue
        found[name] = await _attack_one(name, backend, chosen, aims)
        for attack, verdict in found[name].items():
            verdict.has_control = held[attack]
        await backend.close()
    return found


async def _attack_one(
    name: str, backend: Backend, attacks: list[Attack], aims: dict[str, object]
) -> dict[Attack, Verdict]:
    neighbour = await neighbour_of(backend)
    own_kernel = name == _GVISOR
    most_bytes = _MOST_BYTES_ON_GVISOR if own_kernel else _MOST_BYTES
    aims = aims | {"own_kernel": own_kernel, "most_bytes": most_bytes}
    if name.startswith("pods"):
        other = neighbour.http.base_url.host
        aims = aims | targets.of_the_cluster(os.environ["KUBECONFIG"], other)
    verdicts: dict[Attack, Verdict] = {}
    for attack in attacks:
        if attack.has_control and not targets.control(attack.source, aims):
            verdicts[attack] = Verdict(untested="not even a program outside of sandboxes gets it")
        else:
            verdicts[attack] = await judge(attack, backend, neighbour, aims)
        verdict = verdicts[attack]
        print(
            f"{name:15} {attack.kind:10} {attack.name:58} {verdict.took_s:5.1f} s  {verdict.told}",
            flush=True,
        )
    await neighbour.close()
    return verdicts


def _report(found: dict[str, dict[Attack, Verdict]]) -> int:
    print(f"\n{'point, kind and name':78} {'control':8}" + "".join(f"{name:>20}" for name in found))
    for attack in ATTACKS:
        cells = [verdicts[attack] for verdicts in found.values() if attack in verdicts]
        if cells:
            told = "".join(f"{verdict.told.split(':')[0].split(';')[0]:>20}" for verdict in cells)
            point = str(attack.point or "-")
            has_control = "control" if cells[0].has_control else "-"
            print(f"{point:2} {attack.kind:10} {attack.name:64} {has_control:8}{told}")
    summary = {
        name: {
            "attacks": len(verdicts),
            "contained": sum(not (v.breaches or v.untested) for v in verdicts.values()),
            "not_contained": {a.name: v.breaches for a, v in verdicts.items() if v.breaches},
            "not_tested": {a.name: v.untested for a, v in verdicts.items() if v.untested},
            "by_point": _by(verdicts, lambda attack: str(attack.point)),
            "by_kind": _by(verdicts, lambda attack: attack.kind),
            "with_a_control": sum(v.has_control for v in verdicts.values()),
            "without_a_control": {
                a.name: control.why_not(a) for a, v in verdicts.items() if not v.has_control
            },
            "own_sandbox_lost": [a.name for a, v in verdicts.items() if "lost" in str(v.notes)],
        }
        for name, verdicts in found.items()
    }
    origin = provenance(threads=1) | {"kernel": platform.release()}
    print(json.dumps({"benchmark": "attacks", "origin": origin, "backends": summary}))
    return int(any(backend["not_contained"] for backend in summary.values()))


def _by(verdicts: dict[Attack, Verdict], group: Callable[[Attack], str]) -> dict[str, list[int]]:
    """Group -> contained, all."""
    counted: dict[str, list[int]] = {}
    for attack, verdict in verdicts.items():
        counts = counted.setdefault(group(attack), [0, 0])
        counts[0] += not (verdict.breaches or verdict.untested)
        counts[1] += 1
    return counted


if __name__ == "__main__":
    sys.exit(main())
