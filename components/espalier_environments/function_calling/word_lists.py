"""Words of generated functions and conversations."""

VERBS = (
    "book", "cancel", "check", "clean", "copy", "find", "hide", "lend", "lock", "move", "order",
    "paint", "print", "rent", "repair", "sell", "send", "sort", "store", "wash",
)  # fmt: skip
NOUNS = (
    "bag", "bike", "boat", "book", "box", "cake", "car", "chair", "clock", "coat", "desk", "door",
    "file", "gift", "lamp", "letter", "map", "photo", "room", "shirt", "stage", "table", "tent",
    "ticket",
)  # fmt: skip
PEOPLE = (
    "ada", "ben", "cora", "dan", "ella", "finn", "gina", "hugo", "ida", "jon", "kira", "leo", "mia",
    "noah", "olga", "paul", "rosa", "sam", "tina", "uma",
)  # fmt: skip
CITIES = (
    "oslo", "rome", "paris", "lima", "cairo", "delhi", "tokyo", "quito", "berlin", "dublin",
    "lagos", "sofia", "tunis", "vienna", "warsaw",
)  # fmt: skip
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
COLORS = ("red", "blue", "green", "black", "white", "yellow")
