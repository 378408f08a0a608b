"""The restricted Pod Security Standard (kubernetes.io, "Pod Security Standards"), as a checklist.

It covers the controls of baseline and restricted that a pod of Linux can break. The API server's
own admission is the judge; this one speaks where there is no cluster.
"""

from tests.unit.k8s.rendering import containers

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def violations(spec):
    """What the restricted standard would refuse in a pod spec; empty for a good one."""
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes", []):
        kinds = volume.keys() - {"name"}
        if not kinds <= VOLUMES:
            found.append(f"volume {volume['name']} is {', '.join(sorted(kinds))}")
    pod = spec.get("securityContext", {})
    if pod.get("sysctls"):
        found.append("sysctls are set")
    for container in containers(spec):
        found += [f"{container['name']}: {fault}" for fault in _faults(container, pod)]
    return found


def _faults(container, pod):
    own = container.get("securityContext", {})
    effective = {**pod, **own}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may escalate"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "keeps capabilities"
    if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if effective.get("runAsNonRoot") is not True or effective.get("runAsUser") == 0:
        yield "may be root"
    if effective.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    if own.get("procMount", "Default") != "Default":
        yield "unmasked /proc"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "takes a port of the host"
