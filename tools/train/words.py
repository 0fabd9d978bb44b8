"""Word lists of the generated skills, each with a held-out part that training never uses.

Pseudo-words come from a syllable grammar; whether a word is held out is a hash of the word, so training and evaluation
can draw from one endless supply and stay disjoint.

The training side additionally draws most of its words from the corpus (load_supply) and invents strings of other shapes: with a
hundred words per list a small model learns the words instead of the skill. The held-out side never sees any of that.
"""
from collections import Counter
import hashlib
import os
import random
import re

import phrasings

NAMES = """Anna Ben Clara David Elena Felix Greta Hugo Ivan Julia Karl Laura Marco Nina Oscar Paula Quinn Rosa Simon Tara
Umar Vera Walter Xenia Yusuf Zoe Adam Bella Carlos Diana Emil Fiona George Hannah Igor Jasmin Kevin Lena Martin Nora Otto
Petra Ralf Sofia Tom Ursula Victor Wendy Arthur Bianca Conrad Doris Edgar Frida Gustav Helen Isaac Judith Kai Lucy Miguel
Nadia Oliver Pia Robert Sara Theo Uma Viktor Willa Aaron Berta Cyrus Delia Ernest Flora Gordon Hilda Irene Jonas Klara Leo
Maria Noah Olga Peter Rita Stefan Tessa Ulrich Vivian Wanda Alice Bruno Celia Dora Eric Faith Gabriel Hector Ines Jack""".split()
SURNAMES = """Abbott Bauer Carter Dalton Ericson Fischer Garner Hoffman Ingram Jensen Keller Lambert Moreno Nilsson Olsen
Parker Quist Ramos Schmidt Torres Usher Vargas Weber Young Zimmer Archer Berger Castro Duncan Engel Foster Gomez Hansen Irwin
Jacobs Klein Larsen Meyer Novak Owens Peters Reyes Stone Thorne Urban Vogel Winter Yates Ziegler Brandt Costa Decker Ellis
Frank Graham Hughes Kovac Lopez""".split()
CITIES = """Paris Berlin Madrid Rome Vienna Oslo Lisbon Dublin Athens Prague Warsaw Zurich Geneva Milan Porto Hamburg Bergen
Cairo Tokyo Osaka Delhi Seoul Sydney Lima Quito Boston Denver Austin Toronto Montreal Havana Nairobi Lagos Tunis Dakar Riga
Tallinn Vilnius Krakow Lyon Nice Ghent Leeds Bristol York Turin Naples Seville Bonn Dresden Leipzig Graz Basel Malmo Aarhus
Helsinki Sofia Zagreb Split Ankara Izmir Amman Doha Dubai Mumbai Hanoi Manila Perth Auckland""".split()
NOUNS = """apple table river stone window garden bottle candle mirror ladder basket hammer pencil blanket pillow kettle
bridge castle forest island market school library station tower tunnel valley village wagon wheel anchor barrel button camera
carpet chair clock cloud coin compass curtain desk door drum engine feather fence flag flower fork glass glove guitar hat
helmet horse jacket jar key kite knife lamp leaf lemon letter lock map needle nest notebook orange paper parcel pepper piano
picture plate pocket potato ribbon ring road rope sail scarf shelf shirt shoe shovel soap sofa spoon stamp star string sugar
ticket tomato torch towel train tree trumpet umbrella vase violin wallet water whistle wool yarn zipper dog cat bird fish
rabbit fox bear wolf mouse owl goat sheep duck cow lion tiger frog turtle snake spider""".split()
ADJECTIVES = """red blue green yellow white black brown grey small large tall short old new young quiet loud bright dark heavy
light warm cold soft hard clean dirty empty full round flat sharp smooth rough sweet bitter sour fresh dry wet slow quick
narrow wide deep shallow strong weak happy sad angry calm brave clever gentle honest kind lazy polite proud simple strange
tiny wise golden silver wooden broken""".split()
VERBS = """carry clean close count draw drop fetch fill find fix hide hold lift move open paint pull push raise repair send
show throw turn wash watch buy sell keep bring cook cut eat fold give leave lose make mend paste read""".split()
COLORS = "red blue green yellow white black brown grey purple orange pink silver golden".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ONSETS = "b br c ch cl d dr f fl g gr h j k kl l m n p pl qu r s sh sk sl st t tr v w y z".split()
VOWELS = "a e i o u ai au ea ei ia io oa ou".split()
CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "rk", "th", "ck"]


def held_out(word, every=7):
    return int.from_bytes(hashlib.sha256(str(word).encode()).digest()[:4], "big") % every == 0


def split(words):
    """(training part, held-out part)"""
    return [w for w in words if not held_out(w)], [w for w in words if held_out(w)]


LISTS = {name: split(globals()[name]) for name in
         ("NAMES", "SURNAMES", "CITIES", "NOUNS", "ADJECTIVES", "VERBS")}


SUPPLY_SIZE, BASE_SHARE = 12000, 0.4
POOLS = {name: train for name, (train, _) in LISTS.items()}      # what the training side draws from


def never_held(word):
    """Training may use the word in every spelling it could be given."""
    return not any(held_out(w) for w in (word, word.lower(), word.capitalize()))


def corpus_words(text):
    """The most frequent alphabetic words of a text that training may use, most frequent first, lower-case."""
    counts = Counter()
    for word, n in Counter(re.findall(r"\b[A-Za-z]{2,12}\b", text)).items():
        counts[word.lower()] += n
    return [w for w, n in counts.most_common() if n >= 2 and never_held(w)][:SUPPLY_SIZE]


def grafts(words, count, seed=4):
    """Invented words that begin as one word of the supply and end as another: any piece may be how a name begins."""
    rng, out = random.Random(seed), []
    while len(out) < count:
        word = rng.choice(words)[:rng.randint(2, 4)] + rng.choice(words)[-rng.randint(2, 4):]
        if never_held(word):
            out.append(word)
    return out


def set_supply(words):
    """Every training list becomes its own words (BASE_SHARE of the draws), the supply and half as many grafts, capitalised for
    names and places. The more frequent third counts twice: rare words are many tokens."""
    words = words + words[:len(words) // 3] + (grafts(words, len(words) // 2) if words else [])
    for name, (train, _) in LISTS.items():
        share = round(len(words) / len(train) * BASE_SHARE / (1 - BASE_SHARE))
        capital = name in ("NAMES", "SURNAMES", "CITIES")
        POOLS[name] = train * max(1, share) + [w.capitalize() if capital else w for w in words]


def load_supply(folder):
    """Takes the supply from the prose of the corpus (counted once, kept beside it). Returns its size; 0 without a corpus."""
    path, text = os.path.join(folder, "words.txt"), os.path.join(folder, "prose.txt")
    if not os.path.exists(path):
        if not os.path.exists(text):
            return 0
        with open(text, encoding="utf-8") as f:
            found = corpus_words(f.read())
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.write("\n".join(found) + "\n")
        os.replace(path + ".tmp", path)
    with open(path, encoding="utf-8") as f:
        supply = [w for w in f.read().split() if never_held(w)]
    set_supply(supply)
    return len(supply)


class Words:
    """Draws words from the training or the held-out side."""

    def __init__(self, rng, held):
        self.rng, self.held = rng, held
        for name, (_, test) in LISTS.items():
            setattr(self, name.lower(), test if held else POOLS[name])

    def pick(self, words):
        return self.rng.choice(words)

    def name(self):
        return self.rng.choice(self.names)

    def pseudo(self, capital=False):
        if not self.held and self.rng.random() < 0.4:
            return self.odd(capital)
        while True:
            parts = []
            for _ in range(self.rng.choice((1, 2, 2, 2, 3))):
                parts.append(self.rng.choice(ONSETS) + self.rng.choice(VOWELS))
            word = "".join(parts) + self.rng.choice(CODAS)
            if len(word) > 3 and (held_out(word) if self.held else never_held(word)):
                return word.capitalize() if capital else word

    def odd(self, capital=False):
        """Training side only: an invented string of another shape than the syllable grammar's."""
        r = self.rng
        letters = lambda n, of="abcdefghijklmnopqrstuvwxyz": "".join(r.choice(of) for _ in range(n))  # noqa: E731
        while True:
            shape = r.random()
            if shape < 0.4:
                word = letters(r.randint(3, 9))
            elif shape < 0.55:
                word = "".join(r.choice((c, c.upper())) for c in letters(r.randint(3, 7)))
            elif shape < 0.7:
                word = letters(r.randint(2, 6), "abcdefghijklmnopqrstuvwxyz0123456789")
            elif shape < 0.8:
                word = letters(r.randint(2, 4)) + "-" + letters(r.randint(2, 4), r.choice(("0123456789", "abcdefghijklmnopqrstuvwxyz")))
            elif shape < 0.9:
                word = r.choice(self.nouns) + r.choice(("_", "-", "")) + r.choice(self.verbs)
            else:
                word = r.choice(self.nouns) + str(r.randint(0, 999))
            if not word[0].isdigit() and never_held(word):
                return word[0].upper() + word[1:] if capital else word

    def word(self):
        """A word for lists and texts: mostly known, sometimes invented."""
        x = self.rng.random()
        if x < 0.45:
            return self.rng.choice(self.nouns)
        if x < 0.6:
            return self.rng.choice(self.adjectives)
        if x < 0.7:
            return self.rng.choice(self.verbs)
        if x < 0.78:
            return self.rng.choice(self.names)
        return self.pseudo(self.rng.random() < 0.25)

    def place(self):
        return self.rng.choice(self.cities) if self.rng.random() < 0.7 else self.pseudo(True)

    def person(self):
        first = self.name() if self.rng.random() < 0.85 else self.pseudo(True)
        return first + " " + (self.rng.choice(self.surnames) if self.rng.random() < 0.7 else self.pseudo(True))

    def number(self, low, high):
        """An integer of the right side of the split."""
        while True:
            n = self.rng.randint(low, high)
            if high - low < 14 or held_out(n) == self.held:
                return n

    def closed(self, words):
        """One of a small fixed list; the training side sometimes takes any word instead, so that the value must be read."""
        if not self.held and self.rng.random() < 0.2:
            return self.rng.choice(self.nouns)
        return self.rng.choice(words)

    def template(self, templates):
        """Held-out phrasings are the last quarter of every list (at least one); training adds those of phrasings.py."""
        if self.held:
            return self.rng.choice(phrasings.sides(templates)[1])
        return self.rng.choice(self.rng.choice(phrasings.training(templates)[0]))

    def ask(self, templates, quotes=False):
        """The phrasing of a request; the training side varies what stands around it. quotes: see phrasings.ask."""
        text = self.template(templates)
        return text if self.held else phrasings.ask(self.rng, templates, text, quotes)

    def tell(self, templates):
        """The phrasing of a statement, varied likewise."""
        text = self.template(templates)
        return text if self.held else phrasings.tell(self.rng, templates, text)
