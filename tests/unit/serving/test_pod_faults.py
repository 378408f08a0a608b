from espalier.serving.workload import pod_faults

VERSION = {"espalier.dev/model-version": "3"}


def pod(status, annotations=VERSION):
    return {"metadata": {"annotations": annotations}, "status": status}


def container(state, last=None):
    return {"containerStatuses": [{"name": "serving", "state": state, "lastState": last or {}}]}


def test_a_crash_is_told_once_with_its_last_words():
    ended = {"terminated": {"exitCode": 1, "message": "Traceback\n  error: damaged\n"}}
    status = container({"waiting": {"reason": "CrashLoopBackOff"}}, ended)
    told = pod_faults([pod(status), pod(status)], "3")
    assert told == "serving: CrashLoopBackOff; serving: exit 1 Traceback error: damaged"


def test_a_pod_that_fits_nowhere_is_told():
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    assert pod_faults([pod({"conditions": [condition]})], "3") == (
        "not scheduled: 0/1 nodes are available"
    )


def test_starting_pods_and_those_of_other_versions_have_no_faults():
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "message": "not yet"},
    ]
    starting = [
        pod(container({"waiting": {"reason": reason}}) | {"conditions": conditions})
        for reason in ("ContainerCreating", "PodInitializing")
    ]
    crashing = container({"waiting": {"reason": "CrashLoopBackOff"}})
    others = [pod(crashing, {"espalier.dev/model-version": "2"}), pod(crashing, None)]
    assert pod_faults([*starting, pod({}), {"metadata": {}}, *others], "3") == ""


def test_a_container_that_says_much_is_cut_to_its_end():
    ended = {"terminated": {"exitCode": 2, "message": "y" + "x" * 300}}
    assert pod_faults([pod(container(ended))], "3") == "serving: exit 2 " + "x" * 300
