"""Software repair: faults in repositories, judged by hidden tests (SWE-bench)."""

from espalier.environments.software_repair.family import SoftwareRepair

__all__ = ["SoftwareRepair"]
