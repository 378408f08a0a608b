"""VehicleControlAPI: a car's engine, doors, climate, brakes and navigation."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from espalier_environments.function_calling.states.api import Api, Fields, Reply

_TANK_GALLONS = 50
_MILES_PER_GALLON = 20.0
_FULL_BRAKE_N = 1000
_DOORS = ("driver", "passenger", "rear_left", "rear_right")
_DISTANCES_KM = {
    frozenset({"83214", "74532"}): 750.0, frozenset({"56108", "62947"}): 320.0,
    frozenset({"71354", "83462"}): 450.0, frozenset({"47329", "52013"}): 290.0,
    frozenset({"69238", "51479"}): 630.0, frozenset({"94016", "83214"}): 980.0,
    frozenset({"94016", "94704"}): 600.0, frozenset({"94704", "08540"}): 2550.0,
    frozenset({"94016", "08540"}): 1950.0, frozenset({"62947", "47329"}): 1053.0,
    frozenset({"94016", "62947"}): 780.0, frozenset({"74532", "94016"}): 880.0,
}  # fmt: skip
_ZIP_CODES = {
    "Rivermist": "83214", "Stonebrook": "74532", "Maplecrest": "56108", "Silverpine": "62947",
    "Shadowridge": "71354", "Sunset Valley": "83462", "Oakendale": "47329",
    "Willowbend": "52013", "Crescent Hollow": "69238", "Autumnville": "51479",
    "San Francisco": "94016",
}  # fmt: skip
"""Places and distances of `vehicle_control.py`."""


class VehicleControlAPI(Api):
    """BFCL's simulated car."""

    _FIELDS: ClassVar[Fields] = {
        "random_seed": (int,), "fuelLevel": (int, float), "batteryVoltage": (int, float),
        "engineState": (str,), "doorStatus": (dict,), "acTemperature": (int, float),
        "fanSpeed": (int, float), "humidityLevel": (int, float),
        "frontLeftTirePressure": (int, float), "frontRightTirePressure": (int, float),
        "rearLeftTirePressure": (int, float), "rearRightTirePressure": (int, float),
    }  # fmt: skip

    def _begin(self, config: dict[str, Any]) -> None:
        self._random = random.Random(config.get("random_seed", 141053))
        self.fuelLevel: float = config.get("fuelLevel", 0.0)
        self.batteryVoltage: float = config.get("batteryVoltage", 12.6)
        self.engine_state: str = config.get("engineState", "stopped")
        self.doorStatus: dict[str, Any] = config.get(
            "doorStatus", dict.fromkeys(_DOORS, "unlocked")
        )
        locked = sum(status == "locked" for status in self.doorStatus.values())
        self.remainingUnlockedDoors = len(_DOORS) - locked
        self.acTemperature: float = config.get("acTemperature", 25.0)
        self.fanSpeed: float = config.get("fanSpeed", 50)
        self.acMode: Any = config.get("acMode", "auto")
        self.humidityLevel: float = config.get("humidityLevel", 50.0)
        self.headLightStatus: Any = config.get("headLightStatus", "off")
        self.parkingBrakeStatus: Any = config.get("parkingBrakeStatus", "released")
        self._parking_brake_n: Any = config.get("parkingBrakeForce", 0.0)
        self._slope_angle: Any = config.get("slopeAngle", 0.0)
        self.brakePedalStatus: Any = config.get("brakePedalStatus", "released")
        self._brake_n: Any = config.get("brakePedalForce", 0.0)
        self.distanceToNextVehicle: Any = config.get("distanceToNextVehicle", 50.0)
        self.cruiseStatus: Any = config.get("cruiseStatus", "inactive")
        self.destination: Any = config.get("destination", "None")
        self.frontLeftTirePressure: float = config.get("frontLeftTirePressure", 32.0)
        self.frontRightTirePressure: float = config.get("frontRightTirePressure", 32.0)
        self.rearLeftTirePressure: float = config.get("rearLeftTirePressure", 30.0)
        self.rearRightTirePressure: float = config.get("rearRightTirePressure", 30.0)

    def startEngine(self, ignitionMode: str) -> Reply:
        """Start the engine (START), or stop it (STOP)."""
        if ignitionMode == "STOP":
            self.engine_state = "stopped"
        if fault := self._start_fault(ignitionMode):
            return {"error": fault}
        self.engine_state = "running"
        return {
            "engineState": self.engine_state,
            "fuelLevel": self.fuelLevel,
            "batteryVoltage": self.batteryVoltage,
        }

    def fillFuelTank(self, fuelAmount: float) -> Reply:
        """Fill in fuel, gallons."""
        if fuelAmount < 0:
            return {"error": "fuelAmount: needs 0 or more"}
        level = self.fuelLevel + fuelAmount
        if level > _TANK_GALLONS or level < 0:
            return {"error": f"the tank holds 0 to {_TANK_GALLONS} gallons"}
        self.fuelLevel = level
        return {"fuelLevel": level}

    def lockDoors(self, unlock: bool, door: list[str]) -> Reply:  # noqa: FBT001 (so it is called)
        """Lock or unlock doors."""
        wanted, change = ("unlocked", 1) if unlock else ("locked", -1)
        for one in door:
            if self.doorStatus[one] != wanted:
                self.doorStatus[one] = wanted
                self.remainingUnlockedDoors += change
        return {"lockStatus": wanted, "remainingUnlockedDoors": self.remainingUnlockedDoors}

    def adjustClimateControl(
        self, temperature: float, unit: str = "celsius", fanSpeed: int = 50, mode: str = "auto"
    ) -> Reply:
        """Set temperature, fan and mode."""
        if not 0 <= fanSpeed <= 100:
            return {"error": "fanSpeed: needs 0 to 100"}
        self.acTemperature = temperature
        if unit == "fahrenheit":
            self.acTemperature = (temperature - 32) * 5 / 9
        self.fanSpeed = fanSpeed
        self.acMode = mode
        return {
            "currentACTemperature": temperature,
            "climateMode": mode,
            "humidityLevel": self.humidityLevel,
        }

    def get_outside_temperature_from_google(self) -> Reply:
        """Outside temperature, degrees Celsius."""
        return {"outsideTemperature": self._random.uniform(-10.0, 40.0)}

    def get_outside_temperature_from_weather_com(self) -> Reply:
        """Fails always, as upstream."""
        return {"error": 404}

    def setHeadlights(self, mode: str) -> Reply:
        """Switch the headlights."""
        if mode not in ["on", "off", "auto"]:
            return {"error": f"headlights are on, off or auto, and not {mode}"}
        self.headLightStatus = "on" if mode == "on" else "off"
        return {"headlightStatus": self.headLightStatus}

    def displayCarStatus(self, option: str) -> Reply:
        """State of one part of the car."""
        match option:
            case "fuel":
                return {"fuelLevel": self.fuelLevel}
            case "battery":
                return {"batteryVoltage": self.batteryVoltage}
            case "doors":
                return {"doorStatus": self.doorStatus}
            case "climate":
                return {
                    "currentACTemperature": self.acTemperature,
                    "fanSpeed": self.fanSpeed,
                    "climateMode": self.acMode,
                    "humidityLevel": self.humidityLevel,
                }
            case "headlights":
                return {"headlightStatus": self.headLightStatus}
            case "parkingBrake":
                return {
                    "parkingBrakeStatus": self.parkingBrakeStatus,
                    "parkingBrakeForce": self._parking_brake_n,
                    "slopeAngle": self._slope_angle,
                }
            case "brakePedal":
                return {
                    "brakePedalStatus": self.brakePedalStatus,
                    "brakePedalForce": self._brake_n,
                }
            case "engine":
                return {"engineState": self.engine_state}
            case _:
                return {"error": f"nothing is shown of {option}"}

    def activateParkingBrake(self, mode: str) -> Reply:
        """Engage or release the parking brake."""
        if mode not in ["engage", "release"]:
            return {"error": f"a brake is engaged or released, and not {mode}"}
        is_engaged = mode == "engage"
        self.parkingBrakeStatus = "engaged" if is_engaged else "released"
        self._parking_brake_n = 500.0 if is_engaged else 0.0
        self._slope_angle = 10.0
        return {
            "parkingBrakeStatus": self.parkingBrakeStatus,
            "_parkingBrakeForce": self._parking_brake_n,
            "_slopeAngle": self._slope_angle,
        }

    def pressBrakePedal(self, pedalPosition: float) -> Reply:
        """Press the brake pedal, 0 to 1."""
        if not 0 <= pedalPosition <= 1:
            return {"error": "pedalPosition: needs 0 to 1"}
        if pedalPosition == 0:
            return self.releaseBrakePedal()
        self.brakePedalStatus = "pressed"
        self._brake_n = pedalPosition * _FULL_BRAKE_N
        return {"brakePedalStatus": "pressed", "brakePedalForce": float(self._brake_n)}

    def releaseBrakePedal(self) -> Reply:
        """Release the brake pedal."""
        self.brakePedalStatus = "released"
        self._brake_n = 0.0
        return {"brakePedalStatus": "released", "brakePedalForce": 0.0}

    def setCruiseControl(
        self,
        speed: float,
        activate: bool,  # noqa: FBT001 (so it is called)
        distanceToNextVehicle: float,
    ) -> Reply:
        """Switch the cruise control."""
        distance, speed = float(distanceToNextVehicle), float(speed)
        if self.engine_state == "stopped":
            return {"error": "the engine is stopped"}
        self.distanceToNextVehicle = distance
        if activate and (speed < 0 or speed > 120 or speed % 5 != 0):
            return {"error": "speed: needs a multiple of 5, from 0 to 120"}
        self.cruiseStatus = "active" if activate else "inactive"
        return {
            "cruiseStatus": self.cruiseStatus,
            "currentSpeed": speed,
            "distanceToNextVehicle": distance,
        }

    def get_current_speed(self) -> Reply:
        """Speed, km/h; any number, as upstream."""
        return {"currentSpeed": self._random.uniform(0.0, 120.0)}

    def display_log(self, messages: list[str]) -> Reply:
        """Show messages."""
        return {"log": messages}

    def estimate_drive_feasibility_by_mileage(self, distance: float) -> Reply:
        """Whether the fuel lasts for a distance, miles."""
        return {"canDrive": not self.fuelLevel * _MILES_PER_GALLON < distance}

    def liter_to_gallon(self, liter: float) -> Reply:
        """Convert litres."""
        return {"gallon": liter * 0.264172}

    def gallon_to_liter(self, gallon: float) -> Reply:
        """Convert gallons."""
        return {"liter": gallon * 3.78541}

    def estimate_distance(self, cityA: str, cityB: str) -> Reply:
        """Distance of two zip codes, km."""
        distance = _DISTANCES_KM.get(frozenset({cityA, cityB}))
        return {"error": "no distance is known"} if distance is None else {"distance": distance}

    def get_zipcode_based_on_city(self, city: str) -> Reply:
        """Zip code of a city."""
        # compared one by one, so that an unhashable argument is an unknown city, as upstream
        return {"zipcode": next((_ZIP_CODES[one] for one in _ZIP_CODES if one == city), "00000")}

    def set_navigation(self, destination: str) -> Reply:
        """Set the destination."""
        self.destination = destination
        return {"status": "on the way to " + destination}

    def check_tire_pressure(self) -> Reply:
        """Pressures of the tires, psi."""
        pressures = {
            "frontLeftTirePressure": self.frontLeftTirePressure,
            "frontRightTirePressure": self.frontRightTirePressure,
            "rearLeftTirePressure": self.rearLeftTirePressure,
            "rearRightTirePressure": self.rearRightTirePressure,
        }
        is_healthy = 30 <= sum(pressures.values()) / 4 <= 35
        return {**pressures, "healthy_tire_pressure": is_healthy, "car_info": {}}

    def find_nearest_tire_shop(self) -> Reply:
        """Address of a tire shop."""
        return {"shopLocation": "456 Oakwood Avenue, Rivermist, 83214"}

    def _start_fault(self, mode: str) -> str:
        if self.remainingUnlockedDoors > 0:
            doors = [door for door, status in self.doorStatus.items() if status == "unlocked"]
            return f"doors to be locked first: {', '.join(doors)}"
        if self.brakePedalStatus != "pressed":
            return "the brake pedal is not pressed"
        if self._brake_n != _FULL_BRAKE_N:
            return "the brake pedal is not pressed to the end"
        if self.fuelLevel < 0:
            return "the tank is empty"
        return "" if mode == "START" else f"the engine is started by START, and not by {mode}"
