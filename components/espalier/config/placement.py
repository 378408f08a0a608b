"""Whether the processes of training have a place each, and no node is asked for in vain."""

from __future__ import annotations

from espalier.config.cluster import KubernetesConfig
from espalier.config.hardware import HardwareConfig
from espalier.config.training import TrainingConfig


def require_places(
    training: TrainingConfig, hardware: HardwareConfig, kubernetes: KubernetesConfig
) -> None:
    """Check processes against what a pod has, or the nodes of a RayJob have together.

    Raises:
        ValueError: too many of them, nodes that would idle, or a device that nodes have not.
    """
    if training.processes > 1 and ":" in hardware.device:
        raise ValueError(
            f'hardware.device = "{hardware.device}" is one device, and training.processes='
            f"{training.processes} have one each; name its kind alone"
        )
    processes, gpus, nodes = training.processes, kubernetes.gpus.count, kubernetes.ray.workers
    if not nodes:
        if 0 < gpus < processes:
            raise ValueError(
                f"training.processes={processes} share kubernetes.gpus.count={gpus} in a pod; set "
                "training.processes to that number, ask for more GPUs, or for more nodes "
                "(kubernetes.ray.workers)"
            )
        return
    on_node = kubernetes.processes_on_ray_node
    places = f"kubernetes.ray.workers={nodes} nodes have room for {nodes * on_node}, " + (
        f"one on each of kubernetes.gpus.count={gpus} GPUs" if gpus else "one each without GPUs"
    )
    if processes > nodes * on_node:
        raise ValueError(
            f"training.processes={processes} are too many: {places}; lower it, or add nodes"
        )
    if processes <= (nodes - 1) * on_node:
        raise ValueError(
            f"training.processes={processes} leave a node without work: {places}; set it to that, "
            "or take nodes away"
        )
    if hardware.device != "auto" and hardware.device.startswith("cpu") == bool(gpus):
        raise ValueError(
            f'hardware.device = "{hardware.device}" is not what nodes with kubernetes.gpus.count='
            f'{gpus} compute on; leave it "auto"'
        )
