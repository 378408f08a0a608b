"""Software repair: faults in repositories, judged by hidden tests (SWE-bench)."""

from espalier_environments.software_repair.family import SoftwareRepair

__all__ = ["SoftwareRepair"]
