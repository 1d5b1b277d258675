"""Which words does the demo's language have?  Tables that `stories.py` draws from."""

# ruff: noqa: SIM905  word lists are easier to read without quotes

GIRLS = (
    "Mary Anna Emma Lucy Sara Julia Alice Kate Nora Ruth Ella Clara Rose Helen Jane Grace Eve Laura"
).split()
BOYS = (
    "John Tom Peter Paul Mark David James Simon Adam Luke Henry Jack Oscar Max Ben Hugo Frank Leo"
).split()
NAMES = GIRLS + BOYS

PLACES = (
    "store park school garden house market station beach library kitchen office church hospital "
    "museum farm river forest bridge castle harbour"
).split()
THINGS = (
    "book ball key apple ring letter drink hat coin cup box bag flower map lamp toy cake pen phone "
    "ticket"
).split()
GIVING = "gave handed passed brought offered sent".split()
GOING = "went walked ran came".split()

NOUNS: tuple[tuple[str, str], ...] = (
    ("key", "keys"), ("dog", "dogs"), ("cat", "cats"), ("bird", "birds"), ("horse", "horses"),
    ("boy", "boys"), ("girl", "girls"), ("teacher", "teachers"), ("farmer", "farmers"),
    ("child", "children"), ("man", "men"), ("woman", "women"), ("tree", "trees"),
    ("house", "houses"), ("car", "cars"), ("boat", "boats"), ("table", "tables"),
    ("window", "windows"), ("door", "doors"), ("picture", "pictures"),
)  # fmt: skip
NEAR = "near behind beside above below with".split()
ADJECTIVES = (
    "old young big small red green quiet happy tired clean dirty strange nice heavy"
).split()
NUMBER_VERBS = (("is", "are"), ("was", "were"), ("looks", "look"), ("seems", "seem"))

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
    "England": "London", "Russia": "Moscow", "Japan": "Tokyo", "China": "Beijing",
    "Egypt": "Cairo", "Greece": "Athens", "Poland": "Warsaw", "Austria": "Vienna",
    "Norway": "Oslo", "Sweden": "Stockholm", "Ireland": "Dublin", "Portugal": "Lisbon",
    "Cuba": "Havana", "Kenya": "Nairobi", "Peru": "Lima", "India": "Delhi",
}  # fmt: skip
COLOURS = {
    "grass": "green", "snow": "white", "blood": "red", "coal": "black", "gold": "yellow",
    "chocolate": "brown", "sky": "blue", "milk": "white", "night": "black", "sea": "blue",
    "fire": "red", "sand": "yellow", "leaf": "green", "mud": "brown",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "young", "happy": "sad", "clean": "dirty",
    "light": "dark", "fast": "slow", "high": "low", "rich": "poor", "strong": "weak",
    "open": "closed", "full": "empty", "wet": "dry", "long": "short", "early": "late",
    "loud": "quiet", "hard": "soft", "good": "bad",
}  # fmt: skip
KINDS = {
    "dog": "animal", "cat": "animal", "horse": "animal", "bird": "animal", "apple": "fruit",
    "pear": "fruit", "plum": "fruit", "lemon": "fruit", "rose": "flower", "lily": "flower",
    "tulip": "flower", "hammer": "tool", "saw": "tool", "knife": "tool", "piano": "instrument",
    "violin": "instrument", "drum": "instrument", "flute": "instrument",
}  # fmt: skip
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve").split()

LIST_WORDS = sorted(
    {*THINGS, *PLACES, *(one for one, _ in NOUNS), *ADJECTIVES, *COLOURS, *OPPOSITES, *KINDS}
)
"""Words of the random lists that are repeated."""
