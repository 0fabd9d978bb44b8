"""JSON extraction after a given schema, and DSML tool calls with results and answers.

Both are copying tasks with a fixed outer form; names, values and phrasings are held out as described in skills.py.
"""
import phrasings
from template import pj
from words import CITIES, COLORS, MONTHS, WEEKDAYS


def money(w):
    return w.number(1, 99) if w.rng.random() < 0.5 else float(f"{w.number(1, 99)}.{w.rng.randint(1, 9)}{w.rng.randint(1, 9)}")


def clock(w):
    return f"{w.rng.randint(6, 22):02d}:{w.rng.choice((0, 10, 15, 20, 30, 40, 45, 50)):02d}"


def title(w):
    return f"The {w.pick(w.adjectives).capitalize()} {w.pick(w.nouns).capitalize()}"


def email(w):
    return f"{w.name().lower()}.{w.pick(w.surnames).lower()}@{w.pseudo()}.com"


def code(w):
    return "".join(w.rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(2)) + "-" + str(w.number(100, 9999))


# domain -> (fields: name -> (type, maker), sentences that mention every field in braces)
DOMAINS = {
    "person": ({"name": ("string", lambda w: w.person()), "age": ("integer", lambda w: w.number(5, 99)),
                "city": ("string", lambda w: w.place()), "job": ("string", lambda w: w.closed(
                    "teacher baker doctor pilot farmer painter writer nurse driver cook lawyer singer".split()))},
               ["{name} is {age} years old and works as a {job} in {city}.", "{name}, a {job} from {city}, is {age} years old.",
                "In {city} lives {name}, {age}, who is a {job}.", "Meet {name}. Age: {age}. Home: {city}. Work: {job}.",
                "At the age of {age}, {name} moved to {city} to work as a {job}.", "The {job} {name} ({age}) lives in {city}."]),
    "order": ({"item": ("string", lambda w: w.pick(w.adjectives) + " " + w.pick(w.nouns)), "quantity": ("integer", lambda w: w.number(1, 60)),
               "price": ("number", money), "customer": ("string", lambda w: w.person())},
              ["{customer} ordered {quantity} of the {item} at {price} euros each.", "Order: {quantity} x {item}, {price} euros, for {customer}.",
               "Please send {quantity} {item} to {customer}; the price is {price} euros.",
               "The {item} costs {price} euros and {customer} wants {quantity}.", "{customer} buys {quantity} {item} for {price} euros each."]),
    "meeting": ({"topic": ("string", lambda w: w.pick(w.nouns) + " " + w.pick(("plan", "report", "review", "budget", "design"))),
                 "day": ("string", lambda w: w.closed(WEEKDAYS)), "time": ("string", clock), "room": ("integer", lambda w: w.number(1, 400)),
                 "host": ("string", lambda w: w.name())},
                ["{host} invites you to the {topic} on {day} at {time} in room {room}.", "The {topic} takes place on {day}, {time}, room {room}. Host: {host}.",
                 "On {day} at {time} {host} leads the {topic} in room {room}.", "Room {room} is booked by {host} for the {topic}, {day} {time}.",
                 "{host} moved the {topic} to {day} at {time} in room {room}."]),
    "book": ({"title": ("string", title), "author": ("string", lambda w: w.person()), "year": ("integer", lambda w: w.number(1800, 2025)),
              "pages": ("integer", lambda w: w.number(80, 900))},
             ["{title} by {author} came out in {year} and has {pages} pages.", "{author} wrote {title} in {year}. It has {pages} pages.",
              "In {year} {author} published {title}, a book of {pages} pages.", "{title} ({year}), {pages} pages, is a novel by {author}.",
              "The book {title} was written by {author} in {year} and has {pages} pages."]),
    "trip": ({"from": ("string", lambda w: w.place()), "to": ("string", lambda w: w.place()), "date": ("string", lambda w: f"{w.rng.randint(1, 28)} {w.pick(MONTHS)}"),
              "passengers": ("integer", lambda w: w.rng.randint(1, 9)), "direct": ("boolean", lambda w: w.rng.random() < 0.5)},
             ["{passengers} passengers travel from {from} to {to} on {date}. Direct: {direct}.",
              "Flight {from} to {to}, {date}, {passengers} passengers, direct {direct}.",
              "On {date} a group of {passengers} goes from {from} to {to}. Direct connection: {direct}.",
              "Book {passengers} seats from {from} to {to} for {date}. Direct: {direct}."]),
    "contact": ({"name": ("string", lambda w: w.person()), "email": ("string", email), "phone": ("string", lambda w: str(w.rng.randint(100000, 999999))),
                 "city": ("string", lambda w: w.place())},
                ["You can reach {name} in {city} at {email} or by phone {phone}.", "{name}, {city}, phone {phone}, mail {email}.",
                 "Contact: {name} ({email}), telephone {phone}, office in {city}.", "Write to {email} or call {phone} to talk to {name} in {city}."]),
    "device": ({"code": ("string", code), "color": ("string", lambda w: w.closed(COLORS)), "weight": ("integer", lambda w: w.number(1, 900)),
                "broken": ("boolean", lambda w: w.rng.random() < 0.5)},
               ["Device {code} is {color}, weighs {weight} grams, broken: {broken}.", "The {color} device {code} has a weight of {weight} g. Broken: {broken}.",
                "Unit {code}: color {color}, weight {weight}, broken {broken}.", "Item {code} weighs {weight} grams and is {color}. Broken: {broken}."]),
}
DOMAIN_SHARES = [1, 2, 2, 1, 1, 2, 1]      # training side: orders, meetings and contacts are learned last
JSON_ASK = ["Extract the data as JSON with this schema: {s}\n\n{t}", "Schema: {s}\nText: {t}\nGive me the JSON.",
            "Read the text and fill in the schema.\nText: {t}\nSchema: {s}", "{t}\n\nReturn a JSON object that follows {s}",
            "Turn this into JSON.\nSchema: {s}\n{t}", "Fill this schema: {s}\nfrom this text: {t}",
            "Extract JSON.\nSchema: {s}\nText: {t}", "Text: {t}\nSchema: {s}\nReturn the JSON object."]


def shown(value):
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


VALUES = {"string": (lambda w: w.word(), lambda w: w.word(), lambda w: w.word() + " " + w.word(), lambda w: w.person(), lambda w: w.place(),
                     lambda w: w.pseudo(), code, clock, title, email),
          "integer": (lambda w: w.number(0, 9), lambda w: w.number(0, 99), lambda w: w.number(0, 999), lambda w: w.number(1000, 99999)),
          "number": (money,), "boolean": (lambda w: w.rng.random() < 0.5,)}
PAIRS = ["{k}: {v}", "{k} = {v}", "{k} {v}", "the {k} is {v}", "{k} is {v}", "{v} is the {k}", "its {k} is {v}", "{k} ({v})", "{k} -> {v}", "with {k} {v}"]
JOINTS = ["\n", ", ", "; ", " and ", ". ", " | "]


def invented_fields(w, most):
    """{name: (type, value)} of random words: training side only."""
    fields = {}
    for _ in range(w.rng.randint(1 if most < 4 else 2, most)):
        name = w.pick(w.nouns)
        if w.rng.random() < 0.2:
            name += w.rng.choice(("_", "-", " ")) + w.pick(w.nouns)
        kind = w.pick(("string", "string", "string", "integer", "integer", "number", "boolean"))
        fields[name] = (kind, w.pick(VALUES[kind])(w))
    return fields


def invented_record(w):
    """(fields, values, text) of a record whose keys are random words."""
    fields = invented_fields(w, 6)
    pair, names = w.pick(PAIRS), list(fields)
    w.rng.shuffle(names)
    text = w.pick(JOINTS).join((pair if w.rng.random() < 0.8 else w.pick(PAIRS)).format(k=k, v=shown(fields[k][1])) for k in names)
    if w.rng.random() < 0.4:
        text = f"{w.pick(('The', 'A', 'This', 'My', 'Our'))} {w.pick(w.adjectives)} {w.pick(w.nouns)}{w.pick((': ', ' has ', ', '))}{text}"
    return fields, {k: v for k, (_, v) in fields.items()}, text


def carriers(w):
    """Any words for the verbs and nouns that stand around values in some training phrasings: a value ends where its own form
    ends, whatever follows."""
    return {} if w.held else {"verb": w.pick(w.verbs) + w.pick(("", "s", "ed", "ing")), "noun": w.pick(w.nouns)}


# What stands before a value, with which words for it; a field that is not here stands with any or none.
CUES = {"price": ["{price} euros", "price {price}", "{price} euros each", "at {price}"], "pages": ["{pages} pages", "with {pages} pages", "pages {pages}"],
        "weight": ["{weight} grams", "weight {weight}", "{weight} g"], "broken": ["broken {broken}", "broken: {broken}"], "direct": ["direct {direct}", "direct: {direct}"],
        "from": ["from {from}"], "to": ["to {to}"], "room": ["room {room}", "in room {room}", "to room {room}"], "age": ["{age}", "({age})", "aged {age}", "age {age}"],
        "passengers": ["{passengers}", "{passengers} seats", "{passengers} people"]}
BEFORE = "to in on at for from with of by near and or about until".split()


def scattered(w, fields, sentences):
    """A phrasing made of the fields in any order with any verbs and nouns between them: training side only. None is a held-out one."""
    r = w.rng
    banned = {phrasings.plain(h) for h in phrasings.sides(sentences)[1]}
    while True:
        names, out = list(fields), []
        r.shuffle(names)
        for n, name in enumerate(names):
            part = r.choice(CUES.get(name, ["{" + name + "}"]))
            verb = w.pick(w.verbs).lower() + w.pick(("", "s", "ed", "ing"))
            noun = w.pick(w.nouns).lower()
            x = r.random()
            lead = "" if x < (0.45 if n == 0 else 0.25) else verb + " " if x < 0.5 else f"{verb} {r.choice(BEFORE)} " if x < 0.65 else f"{verb} the " if x < 0.72 else \
                f"the {noun} " if x < 0.77 else f"{noun} " if x < 0.85 else f"{r.choice(BEFORE)} the " if x < 0.88 else f"{r.choice(BEFORE)} "
            out.append(lead + part + (" " + r.choice((verb, noun)) if r.random() < 0.12 else "") + (r.choice((",", ",", ".", ";", " |", ":")) if r.random() < 0.15 else ""))
        text = " ".join(out).rstrip(",;|: ")
        text = text if text.endswith(".") or r.random() < 0.1 else text + "."
        if phrasings.plain(text) not in banned:
            return text


def opened(w, text):
    """Mostly begins like a sentence on the training side: not every capital is a name's."""
    return text if w.held or w.rng.random() < 0.2 else text[0].upper() + text[1:]


def extraction(w):
    if not w.held and w.rng.random() < 0.25:
        fields, values, text = invented_record(w)
    else:
        domain = w.pick(list(DOMAINS)) if w.held else w.rng.choices(list(DOMAINS), DOMAIN_SHARES)[0]
        fields, sentences = DOMAINS[domain]
        values = {k: make(w) for k, (_, make) in fields.items()}
        pattern = w.template(sentences) if w.held or w.rng.random() < 0.7 else scattered(w, fields, sentences)
        text = opened(w, pattern.format(**{**carriers(w), **{k: shown(v) for k, v in values.items()}}))
    keys = list(fields)
    w.rng.shuffle(keys)
    keys = keys[:w.rng.randint(1 if len(keys) < 3 else 2, len(keys))]
    style = w.rng.random()
    if style < 0.5:
        schema = pj({k: fields[k][0] for k in keys})
    else:
        schema = pj({"type": "object", "properties": {k: {"type": fields[k][0]} for k in keys}, "required": keys})
    answer = pj({k: values[k] for k in keys})
    question = w.ask(JSON_ASK, quotes=True).format(s=schema, t=text)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if w.rng.random() < 0.15:
        messages[0]["content"] = w.template(["Text: {t}", "{t}", "Here is the text: {t}", "The text: {t}"]).format(t=text)
        messages.insert(0, {"role": "system", "content": w.template(
            ["Reply only with JSON after this schema: {s}", "Answer in JSON. Schema: {s}", "You extract data as JSON with the schema {s}",
             "Reply in JSON. Schema: {s}"]).format(s=schema)})
    return "json_extraction", messages, False, []


def prop(kind, description=None):
    return {"type": kind, **({"description": description} if description else {})}


# name -> (description, properties, makers, requests, result maker, answers)
TOOLS = {
    "get_weather": ("Get the weather of a city", {"city": prop("string", "Name of the city")}, {"city": lambda w: w.place()},
                    ["What is the weather in {city}?", "How is the weather in {city} today?", "Tell me the weather for {city}.", "Is it warm in {city}?",
                     "What is the weather like in {city} today?"],
                    lambda w, a: {"temperature": w.rng.randint(-9, 38), "sky": w.pick("sunny cloudy rainy windy snowy foggy".split())},
                    "It is {sky} in {city} with {temperature} degrees."),
    "add_numbers": ("Add two numbers", {"a": prop("integer"), "b": prop("integer")}, {"a": lambda w: w.number(100, 9999), "b": lambda w: w.number(100, 9999)},
                    ["Add {a} and {b}.", "What is {a} plus {b}? Use the tool.", "Please add {a} and {b}.", "Sum of {a} and {b}?"],
                    lambda w, a: {"result": a["a"] + a["b"]}, "The result is {result}."),
    "send_mail": ("Send a mail", {"to": prop("string"), "subject": prop("string")},
                  {"to": email, "subject": lambda w: w.pick(w.nouns) + " " + w.pick(w.nouns)},
                  ["Send a mail to {to} about {subject}.", "Write to {to} with the subject {subject}.", "Mail {to}, subject {subject}.", "Send {to} a mail with the subject {subject}."],
                  lambda w, a: {"sent": True}, "The mail to {to} was sent."),
    "set_alarm": ("Set an alarm", {"time": prop("string", "HH:MM"), "repeat": prop("boolean")}, {"time": clock, "repeat": lambda w: w.rng.random() < 0.5},
                  ["Set an alarm for {time}, repeat {repeat}.", "Wake me at {time}. Repeat: {repeat}.", "Alarm at {time}, repeat {repeat}, please.", "Set an alarm at {time}. Repeat: {repeat}."],
                  lambda w, a: {"id": w.number(1, 99)}, "Your alarm for {time} is set."),
    "find_book": ("Search the library", {"title": prop("string")}, {"title": title},
                  ["Do you have the book {title}?", "Find {title} in the library.", "Search for the book {title}.", "Is the book {title} in the library?"],
                  lambda w, a: {"shelf": w.number(1, 99), "author": w.person()}, "{title} by {author} is on shelf {shelf}."),
    "convert_money": ("Convert an amount of money", {"amount": prop("number"), "from": prop("string"), "to": prop("string")},
                      {"amount": money, "from": lambda w: w.pick(("USD", "EUR", "GBP", "JPY")), "to": lambda w: w.pick(("CHF", "SEK", "NOK", "INR"))},
                      ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "Change {amount} {from} into {to}.", "What is {amount} {from} in {to}?"],
                      lambda w, a: {"value": money(w)}, "{amount} {from} are {value} {to}."),
    "book_table": ("Reserve a table in a restaurant", {"place": prop("string"), "people": prop("integer"), "day": prop("string")},
                   {"place": lambda w: w.pseudo(True), "people": lambda w: w.rng.randint(1, 12), "day": lambda w: w.closed(WEEKDAYS)},
                   ["Book a table for {people} at {place} on {day}.", "Reserve a table at {place} for {people} people on {day}.", "On {day} we are {people} at {place}. Book a table.",
                    "Reserve a table for {people} people at {place} on {day}."],
                   lambda w, a: {"confirmed": True, "time": clock(w)}, "Your table at {place} is booked for {day} at {time}."),
    "get_stock": ("Number of pieces in stock", {"product": prop("string")}, {"product": lambda w: w.pick(w.adjectives) + " " + w.pick(w.nouns)},
                  ["How many of {product} are in stock?", "Check the stock of {product}.", "Is {product} in stock?", "Check if {product} is in stock."],
                  lambda w, a: {"count": w.number(0, 300)}, "There are {count} pieces of {product} in stock."),
    "play_song": ("Play a song", {"song": prop("string"), "volume": prop("integer")}, {"song": title, "volume": lambda w: w.number(1, 100)},
                  ["Play {song} at volume {volume}.", "Put on {song}, volume {volume}.", "I want to hear {song} with volume {volume}.", "Please play {song} with volume {volume}."],
                  lambda w, a: {"playing": True}, "Now playing {song}."),
    "get_phone": ("Look up a phone number", {"person": prop("string")}, {"person": lambda w: w.person()},
                  ["What is the phone number of {person}?", "Find the number of {person}.", "I want to call {person}. What is the number?", "What is the number of {person}?"],
                  lambda w, a: {"phone": str(w.rng.randint(100000, 999999))}, "The number of {person} is {phone}."),
}
NO_TOOL = [("Hello!", "Hello! How can I help you?"), ("Thank you.", "You are welcome."), ("Good morning!", "Good morning! How can I help you?"),
           ("Hi there!", "Hello! How can I help you?")]


def schema_of(name, library=None):
    description, properties = (library or TOOLS)[name][:2]
    return {"name": name, "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)}}


def invented_tool(w):
    """(name, entry as in TOOLS) of a tool made of random words: training side only."""
    verb, noun = w.pick(w.verbs), w.pick(w.nouns)
    fields = invented_fields(w, 3)
    fields = {k.replace(" ", "_"): v for k, v in fields.items()}
    values = {k: v for k, (_, v) in fields.items()}
    pair, joint = w.pick(PAIRS), w.pick((", ", "; ", " and "))
    listing = joint.join(pair.format(k=k, v=shown(v)) for k, v in values.items())
    name = w.pick((f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{noun}_{verb}", noun))
    text = w.ask(["Use {tool} with {list}."]).format(tool=name, list=listing, verb=verb, noun=noun).replace("{", "(").replace("}", ")")
    result = w.pick(w.nouns)
    return name, (w.pick((f"{verb.capitalize()} a {noun}", f"{verb.capitalize()} the {noun}", f"{noun.capitalize()} tool")),
                  {k: prop(kind) for k, (kind, _) in fields.items()}, {k: lambda w, v=v: v for k, v in values.items()}, text,
                  lambda w, a: {result: w.pick(VALUES["string"])(w)}, "The " + result + " is {" + result + "}.")


def tool_call(w):
    library = TOOLS
    names = w.rng.sample(list(TOOLS), w.rng.choice((1, 1, 2, 2, 3)))
    if not w.held and w.rng.random() < 0.45:
        library = {**TOOLS, **dict(invented_tool(w) for _ in names)}
        others = [n for n in library if n not in TOOLS]
        names = [w.pick(others) if w.rng.random() < 0.7 else n for n in names]
        names = list(dict.fromkeys(names))
    tools = [schema_of(n, library) for n in names]
    thinking = w.rng.random() < 0.3
    system = {"role": "system", "content": w.pick(("", "", "", "You are a helpful assistant.", "Use the tools when they help."))}
    messages = [system] if system["content"] else []
    if w.rng.random() < 0.06:
        question, answer = w.template(NO_TOOL)
        return "tool_call", messages + [{"role": "user", "content": question}, {"role": "assistant", "content": answer,
                                         "reasoning": "No tool is needed."}], thinking, tools
    for turn in range(2 if w.rng.random() < 0.15 else 1):
        name = w.pick(names)
        _, properties, makers, requests, result, answer = library[name]
        arguments = {k: makers[k](w) for k in properties}
        wording = requests if isinstance(requests, str) else w.ask(requests)      # an invented tool brings its request along
        text = opened(w, wording.format(**{**carriers(w), **{k: shown(v) for k, v in arguments.items()}}))
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": "", "calls": [(name, arguments)], "reasoning": f"I need the tool {name}."})
        if w.rng.random() < 0.5 and turn == 0:
            break
        outcome = result(w, arguments)
        messages.append({"role": "tool", "content": pj(outcome)})
        messages.append({"role": "assistant", "content": answer.format(**{**arguments, **outcome}), "reasoning": "I have the result."})
    return "tool_call", messages, thinking, tools


assert CITIES
