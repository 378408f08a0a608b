"""The Deployment that serves a policy, as a workload of the controller."""

from __future__ import annotations

from espalier.cluster.kubernetes_api import read
from espalier.cluster.objects.names import K8sObject
from espalier.cluster.objects.serving import DEPLOYMENT, served_version, version_reference
from espalier.serving.decision import Champion, RolloutState
from espalier.serving.workload import Address, Workload, serving_errors


class ServingDeployment(Workload):
    """The serving Deployment of one namespace."""

    api_version, kind, plural, name = "apps/v1", "Deployment", "deployments", DEPLOYMENT

    def read(self) -> RolloutState:
        """Read its state.

        Raises:
            ServingError: the cluster cannot be reached, or has no such Deployment; `k8s/` has it.
        """
        with serving_errors():
            found = self._api.send(read(self._path, f"read the Deployment {DEPLOYMENT}"))
        return RolloutState.read(found, self._settings.model)

    def address(self, version: str) -> Address:
        """URL of the Service, and the version's own name, which only its pods answer to."""
        url = self._settings.url or f"http://{DEPLOYMENT}.{self._namespace}.svc:8000"
        return Address(url, version_reference(self._settings.model, version))

    def _fields(self, target: Champion) -> K8sObject:
        return served_version(
            self._settings.model,
            target.version,
            policy_digest=target.policy_digest,
            namespace=self._namespace,
            queue=self._settings.queue,
        )
