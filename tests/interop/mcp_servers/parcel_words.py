"""What the parcel desk knows, and how its orders are worded."""

WEIGHTS = {"lamp": 5, "chair": 7, "desk": 9, "rug": 6, "clock": 2, "mirror": 8, "vase": 4}
WEIGHTS |= {"bench": 9, "stool": 6, "kettle": 3, "globe": 5, "shelf": 7, "drum": 4, "tent": 8}
PRICES = {"rail": 3, "road": 4, "sea": 2, "air": 6}
WORDS = {
    "rail": ("by train", "on rails", "by railway"),
    "road": ("by truck", "on the motorway", "by van"),
    "sea": ("on a ship", "by boat", "across the ocean"),
    "air": ("by plane", "through the air", "on a flight"),
}
TOWNS = ("oslo", "turin", "lyon", "cork", "graz", "porto", "malmo", "bern", "ghent", "split")
