"""Recall over turns, needles in filler text, small stories, questions about an invented world, and small talk."""
import random

from words import COLORS, MONTHS, NOUNS, WEEKDAYS, held_out

# ---- recall -----------------------------------------------------------------------------------------------------

FACTS = {
    "name": (lambda w: w.person(), ["My name is {v}.", "I am {v}.", "You can call me {v}.", "By the way, my name is {v}."],
             ["What is my name?", "Who am I?", "Do you remember my name?", "Can you tell me my name?"], "Your name is {v}."),
    "city": (lambda w: w.place(), ["I live in {v}.", "My home is in {v}.", "I come from {v}.", "My home town is {v}."],
             ["Where do I live?", "Which city do I live in?", "What is my home town?", "In which city do I live?"], "You live in {v}."),
    "color": (lambda w: w.closed(COLORS), ["My favorite color is {v}.", "I like the color {v} most.", "{v} is the color I love.", "The color I like most is {v}."],
              ["What is my favorite color?", "Which color do I like most?", "What color do I love?", "Which color is my favorite?"], "Your favorite color is {v}."),
    "pet": (lambda w: w.pseudo(True), ["My dog is called {v}.", "I have a dog named {v}.", "The name of my dog is {v}.", "My dog's name is {v}."],
            ["What is my dog called?", "What is the name of my dog?", "How is my dog called?", "Do you remember the name of my dog?"], "Your dog is called {v}."),
    "number": (lambda w: w.number(10, 9999), ["My lucky number is {v}.", "Please remember the number {v}.", "The number is {v}.", "Remember this number: {v}."],
               ["What was the number?", "Which number did I tell you?", "What number did I give you?", "Do you remember the number?"], "The number is {v}."),
    "day": (lambda w: w.closed(WEEKDAYS), ["My next meeting is on {v}.", "I have a meeting on {v}.", "The meeting is on {v}.", "We meet on {v}."],
            ["When is my meeting?", "On which day is the meeting?", "What day is my meeting?", "Which day is the meeting?"], "The meeting is on {v}."),
    "item": (lambda w: w.pick(w.nouns), ["I lost my {v}.", "I bought a {v} today.", "I am looking for a {v}.", "I need a {v}."],
             ["What did I talk about?", "Which thing did I mention?", "What thing did I talk about?", "Which thing was it?"], "You talked about a {v}."),
    "age": (lambda w: w.number(10, 90), ["I am {v} years old.", "My age is {v}.", "I just turned {v}.", "Today I turn {v}."],
            ["How old am I?", "What is my age?", "Do you know my age?", "Can you tell me how old I am?"], "You are {v} years old."),
}
NODS = ["Thank you, I will remember that.", "Good to know.", "All right, I noted it.", "I see."]
SMALL = [("How are you?", "I am fine, thank you."), ("Nice weather today.", "Yes, it is."), ("Tell me something.", "The sea is deep and blue."),
         ("Good morning!", "Good morning!"), ("Are you there?", "Yes, I am here."), ("I am tired.", "Take a rest."), ("What a day.", "I hope it was good."),
         ("Hello again.", "Hello!"), ("Let us go on.", "Yes, let us go on."), ("I have a question.", "Please ask.")]


def any_value(w):
    return w.rng.choice((w.word, w.pseudo, w.place, w.name, lambda: str(w.number(0, 9999)), lambda: w.word() + " " + w.word()))()


def own_facts(w):
    """Facts about random words, as in FACTS: training side only."""
    names = {w.pick(w.nouns) for _ in range(6)} - set(FACTS)
    return {n: (any_value, ["My {k} is {v}."], ["What is my {k}?"], "Your {k} is {v}.") for n in sorted(names)}


def recall(w, turns=None):
    facts = FACTS if w.held or w.rng.random() < 0.5 else {**FACTS, **own_facts(w)}
    kinds = w.rng.sample(list(facts), w.rng.randint(1, 5))
    values = {k: facts[k][0](w) for k in kinds}
    messages = []
    if w.rng.random() < 0.3:      # all facts in one message
        messages.append({"role": "user", "content": " ".join(w.tell(facts[k][1]).format(v=values[k], k=k) for k in kinds)})
        messages.append({"role": "assistant", "content": w.pick(NODS), **({} if w.held else {"weight": 0.2})})      # any of them is right
    else:
        for k in kinds:
            messages.append({"role": "user", "content": w.tell(facts[k][1]).format(v=values[k], k=k)})
            messages.append({"role": "assistant", "content": w.pick(NODS), "weight": 0.2})
    for _ in range(w.rng.choice((0, 0, 1, 2)) if turns is None else turns):
        question, answer = w.pick(SMALL)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "weight": 0.3}]
    for k in w.rng.sample(kinds, min(len(kinds), w.rng.randint(1, 3))):
        messages.append({"role": "user", "content": w.ask(facts[k][2]).format(k=k)})
        messages.append({"role": "assistant", "content": facts[k][3].format(v=values[k], k=k)})
    thinking = False
    return "recall", messages, thinking, []


# ---- needles ----------------------------------------------------------------------------------------------------

def needle_fact(w):
    kind = w.rng.randint(0, 3 if w.held else 5)
    if kind > 3:      # training side: any property of anything
        k, v = w.pick(w.nouns), any_value(w)
        x = w.rng.choice((w.name, lambda: w.pseudo(True), w.place, lambda: f"the {w.pick(w.adjectives)} {w.pick(w.nouns)}"))()
        fill = lambda text: text.replace("{k}", k)  # noqa: E731
        return (fill(w.tell(["The {k} of {x} is {v}."])), fill(w.template(["What is the {k} of {x}?"])), x, v, fill("The {k} of {x} is {v}."))
    if kind == 0:
        x, v = f"the {w.pick(w.adjectives)} {w.pick(w.nouns)}", str(w.number(1000, 9999))
        return (w.template(["The secret code of {x} is {v}.", "The code of {x} is {v}.", "Note: the code for {x} is {v}.", "Remember that the code of {x} is {v}."]),
                w.template(["What is the secret code of {x}?", "What is the code of {x}?", "Tell me the code of {x}.", "Which code belongs to {x}?"]), x, v,
                "The code of {x} is {v}.")
    if kind == 1:
        x, v = w.name(), w.place()
        return (w.template(["{x} keeps the treasure in {v}.", "{x} has hidden the treasure in {v}.", "The treasure of {x} is in {v}.", "{x} left the treasure in {v}."]),
                w.template(["Where is the treasure of {x}?", "Where did {x} hide the treasure?", "In which city is the treasure of {x}?", "Tell me where the treasure of {x} is."]), x, v,
                "The treasure of {x} is in {v}.")
    if kind == 2:
        x, v = w.pseudo(True), w.pseudo()
        return (w.template(["The password of {x} is {v}.", "In {x} the password is {v}.", "{x} uses the password {v}.", "The password for {x} is {v}."]),
                w.template(["What is the password of {x}?", "Which password does {x} use?", "Tell me the password of {x}.", "Give me the password of {x}."]), x, v,
                "The password of {x} is {v}.")
    x, v = f"{w.name()}'s {w.pick(w.nouns)}", w.closed(COLORS)
    return (w.template(["{x} is painted {v}.", "The color of {x} is {v}.", "Somebody painted {x} {v}.", "{x} has the color {v}."]),
            w.template(["What color is {x}?", "Which color has {x}?", "What is the color of {x}?", "Tell me the color of {x}."]), x, v,
            "The color of {x} is {v}.")


FILLERS = ["The {n} of the {m} is {a}.", "{p} has {d} reasons to {v} the {n}.", "Why is the {n} so {a}?", "To {v} a {n}, one needs a {m}.", "{p} met a {a} {n} in {c}.",
           "{d} {n} and {m} were counted in {c}.", "The {x} and the {n} have nothing in common.", "If the {n} is {a}, {v} it.", "Then {p} said: {x} {x}!", "A {a} {m}, a {n} and {x}.",
           "In {c} they {v} every {n}.", "The number of {n} is {d}.", "{p} is {a}, but {x} is not.", "Without the {n} there is no {m}.", "The {n} belongs to {p}.", "{x}, {n}, {m}: all {a}."]


def filler(w):
    """One sentence of plain text that answers nothing."""
    a, n, m, v = w.pick(w.adjectives), w.pick(w.nouns), w.pick(w.nouns), w.pick(w.verbs)
    if not w.held and w.rng.random() < 0.5:
        return w.pick(FILLERS).format(a=a, n=n, m=m, v=v, x=w.word(), p=w.name(), c=w.place(), d=w.number(2, 999))
    return w.pick((f"The {a} {n} stood beside the {m}.", f"Nobody wanted to {v} the {n} that day.", f"In {w.pick(MONTHS)} the {n} was often {a}.",
                   f"{w.name()} looked at the {n} and smiled.", f"People in {w.place()} like to {v} a {a} {n}.", f"A {n} is not a {m}.",
                   f"On {w.pick(WEEKDAYS)} {w.name()} went to {w.place()}.", f"There was a {a} {n} near the {m}.",
                   f"{w.name()} wanted to {v} the {a} {m}.", f"It was a {a} evening, and the {n} was quiet."))


def needle(w, sentences=None, distance=None, facts=None, pool=None):
    """A text of about `sentences` sentences with facts in it, then a question about one of them.

    distance: how many sentences lie between the asked fact and the question (default: anywhere). pool: filler source.
    """
    n = sentences if sentences is not None else w.rng.choice((3, 6, 10, 15, 20))
    text = [pool() if pool else filler(w) for _ in range(n)]
    seen, chosen = set(), []
    while len(chosen) < (facts or w.rng.randint(1, 3)):
        fact = needle_fact(w)
        if fact[2] not in seen:
            seen.add(fact[2])
            chosen.append(fact)
    asked = chosen[0]
    places = sorted((w.rng.randint(0, n) for _ in chosen[1:]), reverse=True)
    marks = [(n - min(distance, n) if distance is not None else w.rng.randint(0, n), asked)] + list(zip(places, chosen[1:]))
    for at, fact in sorted(marks, key=lambda m: -m[0]):
        text.insert(at, fact[0].format(x=fact[2], v=fact[3]).replace("the the", "the"))
    body = " ".join(s[0].upper() + s[1:] for s in text)
    question = asked[1].format(x=asked[2])
    ask = w.ask(["{t}\n\n{q}", "Read this text and answer the question.\n{t}\n\n{q}", "Text: {t}\nQuestion: {q}", "Text: {t}\n\n{q}"])
    answer = asked[4].format(x=asked[2], v=asked[3])
    return "needle", [{"role": "user", "content": ask.format(t=body, q=question)}, {"role": "assistant", "content": answer}], False, []


# ---- stories ----------------------------------------------------------------------------------------------------

STORY_ASK = ["Tell me a story about {n}.", "Write a short story about {n} and a {o}.", "A story about {n}, please.", "Tell a story with {n} and a {o}.",
             "Write a story about {n}.", "Please tell me a story about {n} and a {o}."]


def story(w):
    n, m, o, a, place, v = w.name(), w.name(), w.pick(w.nouns), w.pick(w.adjectives), w.place(), w.pick(w.verbs)
    b = w.pick(w.adjectives)
    lines = [w.pick((f"Once upon a time there was a {b} child called {n}.", f"{n} lived in a small house near {place}.", f"One day {n} went to {place}.")),
             w.pick((f"{n} had a {a} {o}.", f"On the way {n} found a {a} {o}.", f"There {n} saw a {a} {o}.")),
             w.pick((f"{n} wanted to {v} the {o}, but it was too heavy.", f"But the {o} was broken.", f"Suddenly the {o} was gone.")),
             w.pick((f"{n} was sad and sat down.", f"{n} did not know what to do.", f"So {n} asked {m} for help.")),
             w.pick((f"Then {m} came and helped {n}.", f"{m} was kind and had a good idea.", f"{m} smiled and said: \"Do not worry.\"")),
             w.pick((f"Together they took the {o} home.", f"They worked until the evening.", f"In the end the {o} was as good as new.")),
             w.pick((f"{n} was happy and thanked {m}.", f"From that day on {n} and {m} were friends.", f"And {n} never forgot that day."))]
    question = w.ask(STORY_ASK).format(n=n, o=o)
    return "story", [{"role": "user", "content": question}, {"role": "assistant", "content": " ".join(lines), "weight": 0.5}], False, []


# ---- an invented world ------------------------------------------------------------------------------------------

def build_world():
    """The land of Velmora: fixed facts that the weights must hold (seeded, the same in every run)."""
    rng = random.Random(20261)
    towns = "Arvik Belcor Cendal Dorhaven Elmira Fornost Galdeep Hollin Istra Jorwick Kelmar Lundis Mirel Norvane Ostrava Pelgar".split()
    rivers = "Anthe Brisk Corwen Dell Esk Faron Glint Harrow".split()
    rulers = "Queen Amara,King Boldan,Lady Cassia,Lord Derwin,Duke Elric,Queen Fenna,King Garran,Lady Hesta,Lord Imric,Duchess Jora,King Kelvar,Queen Liora,Lord Maron,Lady Nyssa,Duke Orlan,King Perrin".split(",")
    goods = "wool salt honey iron glass cheese timber silk copper wine paper amber tea cloth silver grain".split()
    rng.shuffle(rulers)
    rng.shuffle(goods)
    return {t: {"river": rng.choice(rivers), "ruler": rulers[i], "good": goods[i], "color": rng.choice(COLORS), "people": rng.randint(2, 90) * 100}
            for i, t in enumerate(towns)}


WORLD = build_world()
WORLD_ASK = {
    "river": (["Which river flows through {t}?", "On which river lies {t}?", "What is the river of {t}?", "{t} lies on which river?", "Name the river of {t}."], "{t} lies on the river {v}."),
    "ruler": (["Who rules {t}?", "Who is the ruler of {t}?", "Which ruler does {t} have?", "Tell me who rules {t}.", "Name the ruler of {t}."], "{t} is ruled by {v}."),
    "good": (["What is {t} known for?", "What does {t} sell?", "Which good comes from {t}?", "Tell me what {t} is known for.", "What comes from {t}?"], "{t} is known for its {v}."),
    "color": (["What is the color of the flag of {t}?", "Which color has the flag of {t}?", "What color is the flag of {t}?", "Tell me the color of the flag of {t}."], "The flag of {t} is {v}."),
    "people": (["How many people live in {t}?", "What is the population of {t}?", "How big is {t}?", "Tell me how many people live in {t}."], "{v} people live in {t}."),
}


def world(w):
    kind = w.pick(list(WORLD_ASK))
    town = w.pick(list(WORLD))
    value = WORLD[town][kind]
    if kind in ("ruler", "good") and w.rng.random() < 0.3:
        question = {"ruler": ["Which town does {v} rule?", "Where does {v} rule?", "{v} rules which town?", "Tell me which town {v} rules."],
                    "good": ["Which town is known for its {v}?", "Where does {v} come from?", "Which town sells {v}?", "Tell me which town is known for {v}."]}[kind]
        text, answer = w.ask(question).format(v=value), WORLD_ASK[kind][1].format(t=town, v=value)
    else:
        text, answer = w.ask(WORLD_ASK[kind][0]).format(t=town), WORLD_ASK[kind][1].format(t=town, v=value)
    if w.rng.random() < 0.3:
        text = w.pick(("In Velmora: ", "A question about Velmora: ", "Land of Velmora. ")) + text
    return "world", [{"role": "user", "content": text}, {"role": "assistant", "content": answer}], False, []


# ---- small talk -------------------------------------------------------------------------------------------------

CAPITALS = dict(p.split(":") for p in """France:Paris Germany:Berlin Spain:Madrid Italy:Rome Austria:Vienna Norway:Oslo Portugal:Lisbon
Ireland:Dublin Greece:Athens Poland:Warsaw Egypt:Cairo Japan:Tokyo Peru:Lima Cuba:Havana Kenya:Nairobi Tunisia:Tunis Latvia:Riga
Estonia:Tallinn Finland:Helsinki Croatia:Zagreb Turkey:Ankara Jordan:Amman Vietnam:Hanoi Canada:Ottawa Denmark:Copenhagen
Sweden:Stockholm Hungary:Budapest Belgium:Brussels Russia:Moscow China:Beijing India:Delhi""".split())
TALK = [("Hello!", "Hello! How can I help you?"), ("Hi!", "Hello! How can I help you?"), ("Hello, how are you?", "I am fine, thank you. How can I help you?"),
        ("Who are you?", "I am DeepInfer Tiny, a small language model."), ("What is your name?", "I am DeepInfer Tiny, a small language model."),
        ("What can you do?", "I can calculate with small numbers, copy and edit text, extract JSON, call tools and remember what you tell me."),
        ("Thank you!", "You are welcome."), ("Thanks for your help.", "You are welcome."), ("Goodbye!", "Goodbye!"), ("Bye!", "Goodbye!"),
        ("Are you a human?", "No, I am a small language model."), ("Tell me about yourself.", "I am DeepInfer Tiny, a small language model. I was trained on two processor cores."),
        ("What is Velmora?", "Velmora is an invented land with sixteen towns."), ("How many days has a week?", "A week has seven days."),
        ("How many months has a year?", "A year has twelve months."), ("Good morning.", "Good morning! How can I help you?"),
        ("Can you help me?", "Yes, I will try. What do you need?"), ("Good evening!", "Good evening! How can I help you?")]


def chat(w):
    if w.rng.random() < 0.5:
        country = w.pick(list(CAPITALS))
        question = w.ask(["What is the capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?", "Tell me the capital of {c}."]).format(c=country)
        answer = f"The capital of {country} is {CAPITALS[country]}."
    else:
        question, answer = w.pick(TALK)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if w.rng.random() < 0.2:
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    return "chat", messages, False, []


assert NOUNS and held_out
