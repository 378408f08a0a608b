"""Sandboxes as pods, on the node's own kernel and on gVisor's; the suite over both is elsewhere.

ESPALIER_RUNTIME_CLASSES=gvisor,runc pytest tests/integration/sandbox -k pods
"""

import asyncio
import os
import time

import pytest

from espalier.sandbox import SandboxUnavailable
from tests.integration.sandbox.backends import AbsentError, pods
from tests.unit.k8s.allowed_verbs import SANDBOXES

RUNTIME_CLASSES = ("runc", "gvisor")
COMPUTE = """
import numpy, pandas, sympy
table = pandas.DataFrame({"n": numpy.arange(4)})
print(sympy.factorial(20), int(table.n.sum()))
"""


@pytest.fixture(params=RUNTIME_CLASSES)
def backend(request, administrator):
    try:
        return pods(request.param)[0]
    except AbsentError as error:
        return pytest.skip(str(error))


def _on_one_sandbox(backend, work):
    async def open_work_close():
        try:
            sandbox = await backend.create()
            try:
                return await work(sandbox)
            finally:
                await sandbox.close()
        except SandboxUnavailable as error:
            return pytest.skip(str(error))
        finally:
            await backend.close()

    return asyncio.run(open_work_close())


def test_a_sandbox_computes_with_what_its_image_has(backend):
    result = _on_one_sandbox(backend, lambda sandbox: sandbox.run_python(COMPUTE))
    assert result.text.split() == ["2432902008176640000", "6"], result.text


def test_on_gvisor_a_sandbox_has_a_kernel_of_its_own(own_cluster, backend):
    release = _on_one_sandbox(backend, lambda sandbox: sandbox.exec(["uname", "-r"]))
    is_own = release.text.strip() != os.uname().release
    assert is_own is (backend.settings.pods.runtime_class == "gvisor"), release.text


def test_a_sandbox_can_neither_be_root_nor_write_its_image(backend):
    said = _on_one_sandbox(
        backend, lambda sandbox: sandbox.exec(["sh", "-c", "id -u; touch /opt/x || echo no"])
    )
    lines = said.stdout.decode().split()
    assert int(lines[0]) > 65536
    assert lines[-1] == "no"


def test_a_sandbox_holds_no_credential_of_the_cluster(backend):
    said = _on_one_sandbox(
        backend,
        lambda sandbox: sandbox.exec(["sh", "-c", "ls /var/run/secrets /run/secrets; env"]),
    )
    assert "serviceaccount" not in said.text
    assert "KUBERNETES" not in said.text


def test_sandboxes_are_deleted_with_the_lease(backend, core):
    """The trainer that dies deletes nothing: the cluster's own collector does, by owner."""

    async def leave_one_behind():
        try:
            await backend.create()
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        finally:
            await backend.close()

    asyncio.run(leave_one_behind())
    selector = f"espalier.dev/run={backend.run_id}"
    end = time.monotonic() + 60
    while left := core.list_namespaced_pod(SANDBOXES, label_selector=selector).items:
        assert time.monotonic() < end, [pod.metadata.name for pod in left]
        time.sleep(0.5)
