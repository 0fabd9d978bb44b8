"""Seeded generators of the skills a small model is trained and scored on.

Every generator takes a `Words` (which decides training or held-out names, values and phrasings) and returns a Sample.
Held-out items use phrasings, names, numbers and lengths that training never draws. The rendered form is template.py's.
"""
from dataclasses import dataclass, field
import random

from skills_json import extraction, tool_call
from skills_text import SMALL, needle, recall, story, world, chat
from template import PROMPT_WEIGHT, pj, render
from words import Words, held_out


@dataclass
class Sample:
    skill: str
    messages: list          # ends with the assistant turn that is scored
    thinking: bool = False
    tools: list = field(default_factory=list)

    def segments(self):
        return render(self.messages, self.thinking, self.tools)

    def prompt(self):
        """Segments up to the generation opener, and the expected output text (without EOS)."""
        last = self.segments()[-1][0]
        return render(self.messages[:-1], self.thinking, self.tools), last[:last.rfind("<｜end")]


def one_turn(skill, question, answer, reasoning=None, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    reply = {"role": "assistant", "content": str(answer)}
    if reasoning is not None:
        reply["reasoning"] = reasoning
    return Sample(skill, messages + [reply], thinking=reasoning is not None)


# ---- arithmetic -------------------------------------------------------------------------------------------------

ASK = ["What is {e}?", "{e} = ?", "Calculate {e}.", "How much is {e}?", "Please compute {e}.", "Work out {e}.", "{e}",
       "Tell me the result of {e}.", "Can you calculate {e}?", "Give me {e}.", "Solve: {e}", "I need the value of {e}.",
       "Evaluate {e}.", "What do you get for {e}?", "Please work out {e}.", "Compute {e}.", "Can you tell me {e}?"]
ADD_STORY = ["{n} has {a} {o}s and gets {b} more. How many {o}s does {n} have now?",
             "There are {a} {o}s in a box. {n} adds {b} {o}s. How many {o}s are there?",
             "{n} bought {a} {o}s on Monday and {b} {o}s on Tuesday. How many {o}s in total?",
             "{n} has {a} {o}s. {m} gives {n} {b} {o}s. How many {o}s does {n} have?"]
SUB_STORY = ["{n} has {a} {o}s and gives away {b}. How many {o}s are left?",
             "There are {a} {o}s in a box. {n} takes {b} of them. How many remain?",
             "{n} had {a} {o}s and lost {b} {o}s. How many {o}s does {n} have now?",
             "{n} has {a} {o}s. {n} sells {b} {o}s. How many {o}s are left?"]


def add_steps(a, b):
    steps, carry, place = [], 0, 0
    while a or b or place == 0:
        x, y = a % 10, b % 10
        total = x + y + carry
        steps.append(f"{x} + {y}" + (f" + {carry}" if carry else "") + f" = {total}"
                     + (f", write {total % 10} carry 1" if total > 9 else ""))
        carry, a, b, place = total // 10, a // 10, b // 10, place + 1
    return ". ".join(steps) + "."


def sub_steps(a, b):
    tens = a - b // 10 * 10
    return f"{a} - {b // 10 * 10} = {tens}. {tens} - {b % 10} = {a - b}."


def mul_steps(a, b):
    tens, ones = a // 10 * 10, a % 10
    return f"{tens} * {b} = {tens * b}. {ones} * {b} = {ones * b}. {tens * b} + {ones * b} = {a * b}."


def pair(w, low, high):
    while True:
        a, b = w.rng.randint(low, high), w.rng.randint(low, high)
        if held_out(f"{a},{b}", 8) == w.held and (w.held or trains(b, a)):
            return a, b


def trains(a, b):
    """No held-out item may have these numbers in this order."""
    return not held_out(f"{a},{b}", 8)


def near(w, a, b):
    """A number up to 12 below `a` in place of `b`, if training may subtract it."""
    close = a - w.rng.randint(0, min(12, a))
    return close if trains(a, close) and trains(close, a) else b


def arithmetic(w):
    kind = w.rng.choice(("add", "add", "add", "sub", "sub", "sub", "mul"))
    thinking = w.rng.random() < 0.35
    if kind == "mul":
        if thinking:
            a, b = pair(w, 2, 99)
            b = w.rng.randint(2, 9) if b > 9 else b
            steps = mul_steps(a, b)
        else:
            a, b = w.rng.randint(0, 10), w.rng.randint(0, 10)
            steps = None
        sign = w.pick(("*", "*", "×", "times"))
        return one_turn("arithmetic", w.ask(ASK).format(e=f"{a} {sign} {b}"), a * b, steps)
    a, b = pair(w, 0, 99)
    if kind == "sub" and a < b and (thinking or w.rng.random() < 0.7):
        a, b = b, a
    if kind == "sub" and not w.held and w.rng.random() < 0.25:      # differences of close numbers are learned last
        b = near(w, a, b)
    steps = (add_steps if kind == "add" else sub_steps)(a, b) if thinking else None
    answer = a + b if kind == "add" else a - b
    if w.rng.random() < (0.2 if w.held else 0.35) and answer >= 0:
        stories = ADD_STORY if kind == "add" else SUB_STORY
        text = w.ask(stories).format(n=w.name(), m=w.name(), a=a, b=b, o=w.pick(w.nouns))
        return one_turn("arithmetic", text, answer, steps)
    words = {"add": ("+", "+", "+", "plus"), "sub": ("-", "-", "-", "minus")}[kind]
    return one_turn("arithmetic", w.ask(ASK).format(e=f"{a} {w.pick(words)} {b}"), answer, steps)


# ---- copying and editing ----------------------------------------------------------------------------------------

COPY = ["Repeat exactly: {t}", "Copy this text: {t}", "Say this again: {t}", "Write the following text once more.\n{t}",
        "Please repeat: {t}", "Echo: {t}", "Copy the line below without changes.\n{t}", "Repeat after me: {t}",
        "Please copy this text.\n{t}", "Write this again: {t}"]
REPLACE = ["Replace {x} with {y} in this text: {t}", "Change {x} to {y}: {t}", "In the text below, replace {x} by {y}.\n{t}",
           "Rewrite the text with {y} instead of {x}.\n{t}", "Put {y} in place of {x}: {t}", "Swap the word {x} for {y}.\n{t}",
           "Replace the word {x} with {y}.\n{t}", "In this text, change {x} to {y}: {t}"]
DELETE = ["Remove the word {x}: {t}", "Delete {x} from this text: {t}", "Write the text without the word {x}.\n{t}",
          "Leave out {x}: {t}", "Remove {x} from the text below.\n{t}", "Delete the word {x}.\n{t}"]
REVERSE = ["Reverse the order of the words: {t}", "Write the words in reverse order.\n{t}", "Say these words backwards: {t}",
           "List the words from last to first: {t}", "Reverse these words: {t}"]
APPEND = ["Add the word {x} at the end: {t}", "Append {x} to this text: {t}", "Put {x} after the last word.\n{t}",
          "Write the text and add {x} at the end.\n{t}", "Add {x} at the end of this text: {t}"]
PREPEND = ["Put {x} in front: {t}", "Add the word {x} at the start: {t}", "Begin the text with {x}.\n{t}",
           "Write {x} before the first word.\n{t}", "Add {x} at the beginning: {t}"]
COMMAS = ["Separate the words with commas: {t}", "Write these words as a list with commas.\n{t}",
          "Put commas between the words: {t}", "Join these words with commas: {t}"]
FIRST = ["What is the first word? {t}", "Give me the first word of this text: {t}", "Name the first word.\n{t}",
         "Tell me the first word: {t}"]
LAST = ["What is the last word? {t}", "Give me the last word of this text: {t}", "Name the last word.\n{t}",
        "Tell me the last word: {t}"]


def length(w, low, high):
    """Number of items; 7 and 11 are held out."""
    while True:
        n = w.rng.randint(low, high)
        if w.held or n not in (7, 11):
            return n


def text_of(w, n):
    seen = []
    while len(seen) < n:
        word = w.word() if w.rng.random() < 0.93 else str(w.number(0, 999))
        if word not in seen:
            seen.append(word)
    return seen


def copy_edit(w):
    wide = not w.held and w.rng.random() < 0.2
    words = text_of(w, length(w, 2, 16) if wide else length(w, 3, 12))
    text = " ".join(words)
    kinds = ("copy", "copy", "replace", "replace", "delete", "reverse", "append", "prepend", "commas", "first", "last")
    kind = w.rng.choice(kinds if w.held else kinds + ("reverse", "prepend"))
    x = w.pick(words)
    y = next(z for z in iter(w.word, None) if z not in words)
    end = "." if kind == "copy" and w.rng.random() < 0.3 else ""
    templates, answer = {
        "copy": (COPY, text + end),
        "replace": (REPLACE, " ".join(y if z == x else z for z in words)),
        "delete": (DELETE, " ".join(z for z in words if z != x)),
        "reverse": (REVERSE, " ".join(reversed(words))),
        "append": (APPEND, text + " " + y),
        "prepend": (PREPEND, y + " " + text),
        "commas": (COMMAS, ", ".join(words)),
        "first": (FIRST, words[0]),
        "last": (LAST, words[-1])}[kind]
    if kind in ("append", "prepend"):
        x = y
    return one_turn("copy_edit", w.ask(templates, quotes=True).format(x=x, y=y, t=text + end), answer)


# ---- counting and sorting ---------------------------------------------------------------------------------------

COUNT = ["How many words are there? {t}", "Count the words: {t}", "How many items does this list have? {t}",
         "Count the items in this list: {t}", "How many words does this list have? {t}"]
COUNT_X = ["How often does {x} occur? {t}", "Count how many times {x} appears: {t}", "How many times does {x} occur in this list? {t}",
           "How often does {x} appear in this list? {t}"]
UP_TO = ["Count from {a} to {b}.", "List the numbers from {a} to {b}.", "Write the numbers {a} to {b}.", "Count from {a} up to {b}."]


def counting(w):
    kind = w.rng.choice(("items", "items", "times", "range"))
    if kind == "range":
        a = w.rng.randint(0, 60)
        b = a + length(w, 3, 15)
        return one_turn("counting", w.ask(UP_TO).format(a=a, b=b), ", ".join(map(str, range(a, b + 1))))
    if kind == "items":
        items = text_of(w, length(w, 2, 12))
        steps = " ".join(f"{x} {i + 1}" for i, x in enumerate(items)) if w.rng.random() < 0.5 else None
        return one_turn("counting", w.ask(COUNT, quotes=True).format(t=", ".join(items)), len(items), steps)
    kinds = text_of(w, w.rng.randint(2, 4))
    items = [w.pick(kinds) for _ in range(length(w, 4, 12))]
    x = w.pick(kinds)
    answer = items.count(x)
    steps = None
    if w.rng.random() < 0.5:
        seen, parts = 0, []
        for item in items:
            seen += item == x
            parts.append(f"{item} {seen}")
        steps = " ".join(parts)
    return one_turn("counting", w.ask(COUNT_X, quotes=True).format(x=x, t=", ".join(items)), answer, steps)


SORT_UP = ["Sort these numbers from small to large: {t}", "Put the numbers in ascending order: {t}", "Sort ascending: {t}",
           "Order these numbers, smallest first: {t}", "Sort these numbers, smallest first: {t}"]
SORT_DOWN = ["Sort these numbers from large to small: {t}", "Put the numbers in descending order: {t}", "Sort descending: {t}",
             "Order these numbers, largest first: {t}", "Sort these numbers, largest first: {t}"]
SORT_ABC = ["Sort these letters alphabetically: {t}", "Put the letters in alphabetical order: {t}", "Sort the letters: {t}",
            "Order these letters alphabetically: {t}"]
BIGGEST = ["Which number is the largest? {t}", "Find the maximum: {t}", "What is the largest number here? {t}", "Find the largest number: {t}"]
SMALLEST = ["Which number is the smallest? {t}", "Find the minimum: {t}", "What is the smallest number here? {t}", "Find the smallest number: {t}"]


def sorting(w):
    kind = w.rng.choice(("up", "up", "down", "abc", "max", "min"))
    if kind == "abc":
        items = w.rng.sample("abcdefghijklmnopqrstuvwxyz", length(w, 3, 9))
        return one_turn("sorting", w.ask(SORT_ABC, quotes=True).format(t=", ".join(items)), ", ".join(sorted(items)))
    items = w.rng.sample(range(100), length(w, 3, 8))
    listing = ", ".join(map(str, items))
    templates, answer = {"up": (SORT_UP, ", ".join(map(str, sorted(items)))),
                         "down": (SORT_DOWN, ", ".join(map(str, sorted(items, reverse=True)))),
                         "max": (BIGGEST, max(items)), "min": (SMALLEST, min(items))}[kind]
    return one_turn("sorting", w.ask(templates, quotes=True).format(t=listing), answer)


def wrap(function):
    def make(w, **options):
        skill, messages, thinking, tools = function(w, **options)
        return Sample(skill, messages, thinking, tools)
    return make


GENERATORS = {"arithmetic": arithmetic, "copy_edit": copy_edit, "counting": counting, "sorting": sorting,
              "json_extraction": wrap(extraction), "tool_call": wrap(tool_call), "recall": wrap(recall),
              "story": wrap(story), "world": wrap(world), "chat": wrap(chat), "needle": wrap(needle)}
# Share of training items; the trainer turns it into a share of items, not of tokens.
MIX = {"arithmetic": 0.2, "copy_edit": 0.2, "counting": 0.06, "sorting": 0.06, "json_extraction": 0.15, "tool_call": 0.06,
       "recall": 0.08, "story": 0.03, "world": 0.05, "chat": 0.03, "needle": 0.05}


PLAIN = ("arithmetic", "copy_edit", "counting", "sorting", "json_extraction", "needle")
SYSTEMS = ["You are a helpful assistant.", "Be brief.", "Answer exactly.", "You help with texts and numbers.", "Follow the instructions.",
           "You are a careful assistant. Answer with the result only.", "Today is a good day.", "Do what the user asks."]


def surround(rng, sample):
    """Training side: now and then a system text, or another exchange before the one that counts."""
    if rng.random() < 0.06 and sample.messages[0]["role"] == "user":
        sample.messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    if rng.random() < 0.08 and not sample.thinking:
        question, answer = rng.choice(SMALL)
        at = sample.messages[0]["role"] == "system"
        sample.messages[at:at] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "weight": PROMPT_WEIGHT}]
    return sample


def draw(rng, held=False, skill=None, **options):
    if skill is None:
        skill = rng.choices(list(MIX), list(MIX.values()))[0]
    sample = GENERATORS[skill](Words(rng, held), **options)
    return sample if held or skill not in PLAIN else surround(rng, sample)


if __name__ == "__main__":
    import sys
    r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for name in GENERATORS:
        for held in (False, True):
            s = draw(r, held, name)
            print(f"--- {name} held={held}")
            print("".join(t for t, _ in s.segments())[-900:])
    assert pj
