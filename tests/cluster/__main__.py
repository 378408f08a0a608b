"""One cluster on this machine, by hand or for the tests.

    python -m tests.cluster test
    python -m tests.cluster test tests/cluster/operations
    python -m tests.cluster up
    python -m tests.cluster chain --profile laptop --promote
    python -m tests.cluster faults --seed 0
    python -m tests.cluster rollout
    python -m tests.cluster run pytest tests/cluster
    python -m tests.cluster kubeflow --sources DIR
    python -m tests.cluster neighbours --sources DIR
    python -m tests.cluster down

`run` starts a command in the cluster's network, with KUBECONFIG set and our kubectl on PATH.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import building, cluster, network, prerequisites, processes
from tests.cluster.places import ClusterError, places

SUITES = (
    (
        "tests/cluster",
        "--ignore=tests/cluster/kubeflow",
        "--ignore=tests/cluster/neighbours",
        "--ignore=tests/cluster/operations",
    ),
    ("tests/unit/storage/test_places.py", "tests/unit/storage/test_conformance.py", "-k", "minio"),
    ("tests/integration/sandbox", "-k", "pods"),
)
"""What needs a cluster, or shows more on one; a pytest each, since their fixtures differ."""
KUBEFLOW_SUITES = {
    "multi-user": (
        ("tests/cluster/kubeflow", "--ignore=tests/cluster/kubeflow/test_single_user.py"),
        ("tests/unit/cluster/test_kubeflow_server.py",),
    ),
    "single-user": (
        ("tests/cluster/kubeflow/test_single_user.py",),
        ("tests/unit/cluster/test_kubeflow_server.py",),
    ),
}
"""By its mode: what needs Kubeflow, and what holds for it as for its stand-in."""
NEIGHBOUR_SUITES = (
    ("tests/cluster/neighbours",),
    ("tests/integration/sandbox", "-k", "agent-sandbox"),
)
"""What needs Kueue, KubeRay, agent-sandbox or the trainer."""


def main():
    options = _options()
    try:
        return _COMMANDS[options.command](options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _build(options):
    if options.install:
        prerequisites.install()
    prerequisites.check()
    cluster.build(places(), _say)
    return 0


def _up(options):
    if options.install:
        prerequisites.install()
    started = time.monotonic()
    cluster.up(places(), _say)
    _say("up", time.monotonic() - started)
    print(f"KUBECONFIG={places().kubeconfig} (inside: python -m tests.cluster run ...)")
    return 0


def _down(_):
    started = time.monotonic()
    cluster.down(places())
    _say("down", time.monotonic() - started)
    return 0


def _status(_):
    here = places()
    for name in processes.running(here):
        print(f"{name:20} {processes.pid_of(here, name)}")
    left = [] if cluster.is_up(here) else cluster.left_over(here)
    print("up" if cluster.is_up(here) else f"down{''.join(f', left: {item}' for item in left)}")
    return 0 if cluster.is_up(here) else 3


def _run(options):
    here = _running_cluster()
    command = network.inside(*options.words)
    os.execvpe(command[0], command, cluster.environment(here))


def _chain(options):
    from tests.cluster.chain import SANDBOXES_IN_PODS, run_chain
    from tests.cluster.serving import promote_and_serve

    here = _entered_cluster()
    programs = SANDBOXES_IN_PODS if options.profile.startswith("arithmetic") else ()
    print("seconds after the first Job   created  started    ended")
    run, _times = run_chain(
        here, _say_stage, profile=options.profile, overrides=(*programs, *options.set)
    )
    print(f"run {run.run_id}")
    if options.promote:
        promote_and_serve(here, run, _say_stage)
    return 0


def _faults(options):
    from tests.cluster.faults import run_with_faults

    here = _entered_cluster()
    outcome = run_with_faults(here, lambda line: print(line, flush=True), seed=options.seed)
    print(json.dumps({"benchmark": "faults", **outcome._asdict(), "is_well": outcome.is_well}))
    return 0 if outcome.is_well else 1


def _rollout(options):
    """A cluster with vLLM servers, or the one that is up, and a run on them."""
    from tests.cluster import rollout

    rollout.check()
    here = places()
    if not cluster.is_up(here):
        prerequisites.install()
        cluster.up(here, _say)
        try:
            command = network.inside(sys.executable, "-m", "tests.cluster", "rollout")
            return subprocess.run(command, env=cluster.environment(here), check=False).returncode
        finally:
            _down(options)
    outcome = rollout.run_on_servers(_entered_cluster(), lambda line: print(line, flush=True))
    print(*outcome.lines(), sep="\n")
    print(
        json.dumps(
            {"benchmark": "cluster-rollout", **outcome._asdict(), "is_well": outcome.is_well}
        )
    )
    return 0 if outcome.is_well else 1


def _kubeflow(options):
    """The tests on a real Kubeflow Pipelines: a cluster of their own, or the one that is up."""
    from tests.cluster.kubeflow import backend, browsing, manifests, sources

    if options.sources is None:
        return _skipped("Kubeflow Pipelines", "kubeflow/pipelines and argo-workflows")
    here = places()
    checkouts = sources.found_in(options.sources.resolve())
    prerequisites.install(prerequisites.PACKAGES | prerequisites.OF_KUBEFLOW)
    prerequisites.check()
    backend.build(here, checkouts, _say)

    def install():
        mode = backend.mode_of(here)
        if mode is None:
            mode = options.mode or manifests.MULTI_USER
            backend.up(here, checkouts, mode, _say)
        elif mode != (options.mode or mode):
            raise ClusterError(f"a {mode} Kubeflow is up: `python -m tests.cluster down` ends it")
        environment = backend.environment(here)
        if options.pictures is not None:
            options.pictures.mkdir(parents=True, exist_ok=True)
            environment[browsing.PICTURES] = str(options.pictures.resolve())
        return KUBEFLOW_SUITES[mode], environment

    return _with_installed(options, here, install)


def _neighbours(options):
    """The tests on Kueue, KubeRay, agent-sandbox and the trainer: as those on Kubeflow."""
    from tests.cluster.neighbours import backend, sources

    if options.sources is None:
        return _skipped("Kubeflow's neighbours", "kueue, kuberay, agent-sandbox, trainer")
    here = places()
    checkouts = sources.found_in(options.sources.resolve())
    prerequisites.install()
    prerequisites.check()
    wanted = options.only.split(",") if options.only else [one.name for one in sources.PROGRAMS]
    failed = backend.build(here, checkouts, wanted, _say)
    for name, reason in failed.items():
        print(f"not built: {name}, only its CRD files are used: {reason}")
    built = [name for name in wanted if name not in failed]

    def install():
        backend.up(here, checkouts, built, _say)
        return NEIGHBOUR_SUITES, backend.environment(options.sources.resolve(), built)

    return _with_installed(options, here, install)


def _skipped(what, repositories):
    print(
        f"skipped: the tests on {what} cannot run here: no --sources: checkouts of {repositories}"
    )
    return 0


def _with_installed(options, here, install):
    """Run suites on a cluster that `install` completes, or leave it running for --up.

    Args:
        options: of the command line.
        here: places of the cluster, which is ended again unless it was up before.
        install: brings up what is not there yet; gives the suites to run, unless the command line
            names some, and their environment besides the cluster's own.
    """
    was_up = cluster.is_up(here)
    if not was_up:
        cluster.up(here, _say)
    is_kept = False
    try:
        suites, environment = install()
        if options.up:
            is_kept = True
            return 0
        environment = cluster.environment(here) | environment
        return _pytest(options, suites, lambda command: network.inside(*command), environment)
    finally:
        if not (was_up or is_kept):
            _down(options)


def _running_cluster():
    here = places()
    if not cluster.is_up(here):
        raise ClusterError("no cluster runs; `python -m tests.cluster up` starts one")
    return here


def _entered_cluster():
    """For what reads from the cluster's own servers: this command, begun again in its network."""
    here = _running_cluster()
    if not network.is_entered():
        again = network.inside(sys.executable, "-m", "tests.cluster", *sys.argv[1:])
        os.execvpe(again[0], again, cluster.environment(here))
    return here


def _say_stage(times):
    print(
        f"{times.stage:28} {times.created:8.0f} {times.started:8.0f} {times.ended:8.0f}", flush=True
    )


def _test(options):
    """Start a cluster, run what needs one, end it; on the user's own, only what is in between."""
    if "KUBECONFIG" in os.environ:
        return _pytest(options, SUITES, lambda command: command, os.environ)
    try:
        prerequisites.install()
        prerequisites.check()
        building.check_reachable(places().programs)
    except ClusterError as error:
        if not options.if_possible:
            raise
        print(f"skipped: the tests on a cluster cannot run here: {error}")
        return 0
    cluster.up(places(), _say)
    started = time.monotonic()
    try:
        return _pytest(
            options,
            SUITES,
            lambda command: network.inside(*command),
            cluster.environment(places()),
        )
    finally:
        _say("tests", time.monotonic() - started)
        _down(options)


def _pytest(options, suites, entering, environment):
    """The worst exit status of the suites, or of the one that was asked for."""
    suites = [options.words] if options.words else suites
    commands = [entering([sys.executable, "-m", "pytest", *suite]) for suite in suites]
    return max(subprocess.run(one, env=environment, check=False).returncode for one in commands)


def _say(what, seconds):
    print(f"{what:28} {seconds:7.1f} s", flush=True)


def _options():
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        command = commands.add_parser(name)
        if name in ("build", "up"):
            command.add_argument(
                "--install", action="store_true", help="install missing Debian packages first"
            )
        if name == "test":
            command.add_argument(
                "--if-possible", action="store_true", help="succeed where no cluster can be had"
            )
        if name in ("run", "test"):
            command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
        if name == "chain":
            command.add_argument("--profile", default="smoke")
            command.add_argument("--set", nargs="*", default=[], help="settings of the profile")
            command.add_argument(
                "--promote", action="store_true", help="and promote what it registers into service"
            )
        if name in _CHECKOUTS:
            command.add_argument("--sources", type=Path, help=f"folder with {_CHECKOUTS[name]}")
            command.add_argument("--up", action="store_true", help="start it, and leave it running")
            if name == "neighbours":
                command.add_argument("--only", help="names of some, with commas between them")
            if name == "kubeflow":
                command.add_argument(
                    "--mode", choices=list(KUBEFLOW_SUITES), help="multi-user if not said"
                )
                command.add_argument(
                    "--pictures", type=Path, help="folder for pictures of its pages"
                )
            command.add_argument("words", nargs=argparse.REMAINDER, metavar="PYTEST")
        if name == "faults":
            command.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


_CHECKOUTS = {
    "kubeflow": "pipelines/ and argo-workflows/",
    "neighbours": "kueue/, kuberay/, agent-sandbox/, trainer/, kserve/",
}
_COMMANDS = {
    "build": _build,
    "up": _up,
    "status": _status,
    "run": _run,
    "chain": _chain,
    "faults": _faults,
    "rollout": _rollout,
    "kubeflow": _kubeflow,
    "neighbours": _neighbours,
    "test": _test,
    "down": _down,
}

if __name__ == "__main__":
    sys.exit(main())
