"""How the parcel desk of parcel_server.py speaks of its carriers."""

CARRIER_OF = {
    "by train": "rail", "on rails": "rail", "by railway": "rail",
    "by truck": "road", "on the motorway": "road", "by van": "road",
    "on a ship": "sea", "by boat": "sea", "across the ocean": "sea",
    "by plane": "air", "through the air": "air", "on a flight": "air",
}  # fmt: skip
