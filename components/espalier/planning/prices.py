"""Cost of a run from a price table: a TOML file with prices per hour.

currency = "EUR"
gpu_hour = 2.40
cpu_core_hour = 0.035
memory_gib_hour = 0.004
machine_hour = 0.0      # the whole machine, instead of its parts
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from espalier.records import ProfileError


class PriceTable(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Prices per hour; 0 is free."""

    currency: str = Field(default="EUR", min_length=1, max_length=8)
    gpu_hour: float = Field(default=0.0, ge=0)
    """Price of an accelerator, charged for the stages that run a policy."""
    cpu_core_hour: float = Field(default=0.0, ge=0)
    """Price of a core, charged for threads x processes and rollout workers of the profile."""
    memory_gib_hour: float = Field(default=0.0, ge=0)
    """Price of a GiB of the host's memory, charged for the run's peak."""
    machine_hour: float = Field(default=0.0, ge=0)
    """Price of the whole machine, charged regardless of use."""

    @model_validator(mode="after")
    def _something_has_a_price(self) -> Self:
        if not any((self.gpu_hour, self.cpu_core_hour, self.memory_gib_hour, self.machine_hour)):
            raise ValueError(
                "no price is above 0; set gpu_hour, cpu_core_hour, memory_gib_hour or machine_hour"
            )
        return self

    def cost(self, *, hours: float, gpu_hours: float, cores: int, memory_mib: float) -> float:
        """Price of a run.

        Args:
            hours: duration of the whole run.
            gpu_hours: accelerator-hours, summed over accelerators.
            cores: number of cores in use.
            memory_mib: peak memory on the host.
        """
        of_hour = (
            cores * self.cpu_core_hour
            + memory_mib / 1024 * self.memory_gib_hour
            + self.machine_hour
        )
        return hours * of_hour + gpu_hours * self.gpu_hour


def read_prices(path: Path) -> PriceTable:
    """Read a price table from a TOML file.

    Raises:
        ProfileError: the file is missing or not TOML, has an unknown key, or a price below 0.
    """
    try:
        return PriceTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProfileError(f"{path}: not a readable price table ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise ProfileError(
            f"{path}: {key + ': ' if key else ''}{fault['msg']}; prices are "
            f"{', '.join(PriceTable.model_fields)}"
        ) from error
