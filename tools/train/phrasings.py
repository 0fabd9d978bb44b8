"""More training phrasings for every template list of the skills; the held-out side never reads this file's texts.

MORE maps the first template of a list to patterns. `[a|b|]` in a pattern stands for one of its alternatives; a pattern is drawn
first and then one of its expansions, so a pattern with many alternatives does not crowd out the others. Expansions that say
the same as a held-out phrasing of their list (see `plain`) are dropped. Carriers (`ask`, `tell`) surround a phrasing on the
training side: greetings, politeness, line breaks, quotes, a word of thanks.
"""
from itertools import product
import re

import phrasings_facts
import phrasings_tools

EDIT = {
    "What is {e}?": [
        "[Find|Determine|Figure out|State|Print|Show] [the value of|the answer to|] {e}[.|]", "{e} [=|is|makes|gives|equals]",
        "[What's|what is|whats] {e}", "What [does|will|would] {e} [make|give|equal|come to]?", "How much [does|would|will] {e} make?",
        "I [want|would like|have|need] to [know|find out|calculate] {e}.", "[Could|Would|Will] you [compute|calculate|work out] {e}[ for me|]?",
        "[Quick question|Question|Problem|Task|Exercise|Sum|Math]: {e}", "[Answer|Result|Total|Value] of {e}[?|.|:]", "{e}?", "{e}, [please|how much is that|what is it]?",
        "Do [the sum|this one|the math]: {e}", "Help me with {e}[.|, please.]", "What number is {e}?", "[Take|Look at|Consider] {e}. What is [it|the result|that]?",
        "If I [type|enter|compute] {e}, what [comes out|is the result|do I see]?", "[I wonder|Let me know|Say] what {e} is.", "Simplify {e}.",
        "{e} [in numbers|as a number], please.", "The result of {e} is [what|which number]?", "[My homework|The exercise|The book] says: {e}. [What is the answer|Solve it]?"],
    "{n} has {a} {o}s and gets {b} more. How many {o}s does {n} have now?": [
        "{n} [owns|keeps|holds|found|collected] {a} {o}s. Then {n} [finds|buys|receives|picks up] {b} more. [How many is that|What is the total|How many are there now]?",
        "[First|At first|Yesterday] there were {a} {o}s, [then|today] {b} [more came|were added|arrived]. How many are [there|there now]?",
        "{a} {o}s [lie|are|stand] on the [table|shelf|floor] and {b} [in|under|behind] the [drawer|bed|door]. How many [altogether|in all]?",
        "{n} has {a} {o}s, {m} has {b} {o}s. How many do they have [together|in all]?", "{m} [counts|sees] {a} {o}s here and {b} there. [What is the sum|How many]?",
        "A [bag|crate|room] [holds|has] {a} {o}s and another [holds|has] {b}. How many {o}s are in both?",
        "After {n} got {b} {o}s on top of {a}, how many {o}s were there?", "How many {o}s does {n} have with {a} old ones and {b} new ones?",
        "{n} [had|has|kept] {a} {o}s[.| when] {m} [brought|handed|sent|passed|lent|gave] {n} [another |]{b}[ more|]. [How many has {n} got|What does {n} have now|How many is that]?",
        "{m} [gives|brings|sends|hands|offers] {b} {o}s to {n}, who [had|has|owns] {a}. How many [are that|does {n} have then]?",
        "[Today|Then|Now] {m} [gives|brings|sends|hands] {n} {b} {o}s. [Before, {n} had {a}|{n} already had {a}]. How many [now|in all]?"],
    "{n} has {a} {o}s and gives away {b}. How many {o}s are left?": [
        "{n} [owned|kept|held|had] {a} {o}s but [broke|ate|threw away|used up|gave {m}] {b} of them. [How many remain|What is left|How many are there now]?",
        "Of {a} {o}s, {b} are [gone|lost|broken|sold]. How many are [left|still there|whole]?", "[First|Yesterday] there were {a} {o}s. {b} [were taken|disappeared|are gone]. How many now?",
        "{n} sees {a} {o}s. {m} carries {b} away. How many {o}s [can {n} see now|stay]?", "How many {o}s remain when {b} of {a} are [taken away|removed]?",
        "A [bag|crate|room] has {a} {o}s; {b} fall out. How many stay [in|inside]?", "{n} must [give back|return] {b} of {a} {o}s. How many does {n} keep?",
        "{n} has {a} {o}s and [sells|sold|hands out|mails|drops|returns] {b}[ of them|]. [How many remain|How many stay|What is left]?",
        "{n} [gives|hands|sends|sells|lends] {m} {b} of {a} {o}s. How many does {n} [keep|still have]?",
        "{n} had {a} {o}s. Then {n} [sold|gave {m}|dropped|sells|gives {m}] {b} {o}s. How many [are there|are left with {n}|stay]?"],
    "Repeat exactly: {t}": [
        "[Copy|Repeat|Reproduce|Duplicate|Quote|Echo|Mirror|Restate|Print|Output|Return|Type|Say] [this|the following|this line|the next line|exactly this|word for word]: {t}",
        "{t}\n\n[Copy|Repeat|Quote|Say again|Reproduce] [the text above|that|the line above|what I wrote|this exactly].",
        "[Could|Can|Would] you [repeat|copy|echo|reproduce] [this|the following|these words][ for me|]? {t}", "Do not change anything, [just|only] [copy|repeat|print] [it|this]: {t}",
        "[I want to see|Give me|Show me|Send me] [the same|exactly the same|this] [text|line|words] [again|once more|back]: {t}", "Same [again|text|words]: {t}", "[copy|repeat|echo] {t}",
        "Your [answer|reply|output] must be [exactly this|this text|the same as this line]: {t}", "Answer with [this text|these words|the line below] and nothing else.\n{t}",
        "[Write|Type|Put] down [what you read|what I say|the following]: {t}", "I say: {t}\n[You say the same|Now you|And you say|Your turn to say it].",
        "[Text|Line|Input|Source]: {t}\n[Copy|Output|Repetition|Same text]:", "Please [give back|return|write out] [the text|the words|this line] [unchanged|as it is|verbatim]:\n{t}",
        "Make a copy [of this|of the text|of these words]. {t}", "Without any change, [say|write|repeat]: {t}", "What did I [say|write]? {t}",
        "The [next|following] line [is to be copied|has to be repeated|should come back unchanged].\n{t}", "[Verbatim copy|Exact copy|Transcript], please: {t}"],
    "Replace {x} with {y} in this text: {t}": [
        "[Replace|Exchange|Swap] [every |each |the word |]{x} [for|with|by] {y}[ here| below|]: {t}",
        "Substitute {y} for {x}[: | in: |.\n]{t}", "{t}\n\n[Replace|Change|Swap] {x} [by|to|for|with] {y} [above|in the line above|there|].",
        "[Use|Write|Say] {y} [wherever|where] [it says|you see|there is] {x}: {t}", "Turn [every |]{x} into {y}: {t}",
        "[Instead of|In place of|Rather than] {x}, [write|put|use|say] {y}[: |.\n]{t}", "{x} should [be|become|read] {y}[ here|]: {t}", "{x} -> {y}\n{t}", "{t}\n{x} [->|=>|becomes|is now called] {y}",
        "The word {x} is wrong, [it should be|the right one is|take] {y}. [Correct|Fix|Rewrite] [the text|the line|this]: {t}", "[Correct|Edit|Fix|Update] this [text|line]: {t}\nChange: {x} to {y}",
        "[Could|Can|Would] you [put {y} for {x}|change {x} to {y}|replace {x} by {y}][ in the following| here|]? {t}",
        "Give me [this text|this line|the words] with {x} [changed to|replaced by|turned into] {y}: {t}", "Where it says {x}, I want {y}.\n{t}", "[Rename|Update] {x} to {y}[ in this list| in this line|]: {t}",
        "Here is a [text|line]: {t}\n[Take out {x} and put in {y}|Put {y} where {x} is|Exchange {x} for {y}].", "Same text, but {y} [instead of|in place of|for] {x}: {t}",
        "[Text|Line|Input]: {t}\n[Old|Find]: {x}\n[New|Replace]: {y}", "Take the word {x} [out|away] and [write|put] {y} [there|in its place]: {t}"],
    "Remove the word {x}: {t}": [
        "[Drop|Erase|Strike|Cut|Omit|Skip|Take out|Remove|Cross out|Get rid of|Delete] [the word |]{x}[: |.\n| here: | in this line: ]{t}",
        "{t}\n\n[Remove|Delete|Drop|Take out|Erase|Leave out] {x}[ above| from the line above| there|].", "[Could|Can|Would] you [remove|delete|drop|take out] {x}[ here| for me|]? {t}",
        "[Say|Write|Repeat|Copy|Give me] [this|the text|the line|all words] without {x}: {t}", "[Everything|All words|The whole line] [but|except] {x}[, please|]: {t}",
        "There should be no {x}[ in it| here|]: {t}", "I do not want [the word |]{x} [here|in this text|any more].\n{t}", "{x} [is too much|must go|has to go|is not needed|should not be here]: {t}",
        "[Text|Line|Input]: {t}\n[Remove|Delete|Without|Drop]: {x}", "Here is a [text|line]: {t}\n[Take {x} away|Drop {x}|Cross out {x}|Leave {x} out].", "-{x}\n{t}",
        "The text [minus|without] {x}, please: {t}", "Copy the [line|text|words] but [skip|omit|leave out] {x}: {t}"],
    "Reverse the order of the words: {t}": [
        "[Turn around|Flip|Invert|Reverse|Mirror] [the word order|the order|the sequence|the list][ here| of these words|]: {t}",
        "{t}\n\n[Reverse|Turn around|Flip] [the order|the words above|the line above|this].", "[Backwards|Reversed|In reverse|The other way round|Last to first|From back to front][, please|]: {t}",
        "[Start|Begin] with the last word and [end|finish|stop] with the first: {t}", "[Write|Read|Say|Repeat|Give me] [this|the line|the text|the words] [from the end|from back to front|from right to left|the other way round|in the opposite order]: {t}",
        "[Could|Can|Would] you [reverse|flip|turn round] [the order|the words|this line]? {t}", "[Text|Line|Input|Words]: {t}\n[Reversed|Backwards|Reverse order]:",
        "The last word [first|comes first], the first word last: {t}", "[I need|I want|Show me] the words in [opposite|reversed|backward] order.\n{t}", "reverse {t}", "Read it backwards: {t}",
        "Take the [words|line|list] and [turn it around|put the end first|reverse it]: {t}"],
    "Add the word {x} at the end: {t}": [
        "[Attach|Append|Add|Put|Write|Place|Stick] {x} [at the very end|to the end|as the last word|behind the text|at the back|after the text][ of this|]: {t}",
        "{t}\n\n[Add|Append|Attach|Put] {x} [to the line above|at the end|there|as last word].", "[End|Finish|Close|Complete] [the text|the line|it|this] with {x}[: |.\n]{t}",
        "[Could|Can|Would] you [add|append|put] {x} [to the end|after the last word|behind it]? {t}", "[Let {x} be|Make {x}] the last word: {t}",
        "The [text|line] should end [with|in] {x}: {t}", "[Text|Line|Input]: {t}\n[Append|Add at the end|New last word|Then]: {x}", "[Copy|Repeat|Write] [this|the line], then [add|write|say] {x}: {t}",
        "Extend [the line|this text|the list] [by|with] {x}: {t}", "Here is a [text|line]: {t}\n[Continue it with {x}|Add {x} behind it|{x} comes next].", "{x} goes [last|at the end|to the back]: {t}", "+ {x} at the end\n{t}"],
    "Put {x} in front: {t}": [
        "[Put|Write|Place|Add|Insert|Set|Stick] {x} [at the very start|at the front|before everything|before the text|as the first word|in first place|ahead of the rest][ of this|]: {t}",
        "{t}\n\n[Put|Add|Write|Place] {x} [in front of the line above|at the start|before it|as first word].", "[Start|Begin|Open] [the line|it|this] with {x}[: |.\n]{t}",
        "[Could|Can|Would] you [put|add|write] {x} [at the start|in front|before the first word]? {t}", "[Let {x} be|Make {x}] the first word: {t}", "{x} [should come first|goes first|comes before the rest]: {t}",
        "The [text|line] should [start|begin] with {x}: {t}", "[Text|Line|Input]: {t}\n[Prepend|Add at the start|New first word|Before it]: {x}", "[Say|Write] {x}, then [copy|repeat|write] [this|the line]: {t}",
        "Prepend {x}[ to this|]: {t}", "Here is a [text|line]: {t}\n[Put {x} ahead of it|Add {x} before it|{x} comes first].", "First {x}, then [the rest|all of this]: {t}", "+ {x} at the start\n{t}"],
    "Separate the words with commas: {t}": [
        "[Insert|Use|Write|Set|Add] [commas|a comma] between [the|these|all] words: {t}",
        "{t}\n\n[Put commas between the words above|Make a comma list of this|Separate by commas].", "[Turn|Make|Change|Convert] [this|the line|the text|these words] into a [comma list|list with commas|comma-separated list]: {t}",
        "[Comma-separated|As a comma list|With commas|A list with commas][, please|]: {t}", "[Could|Can|Would] you [put commas between|separate with commas] these words? {t}",
        "[Text|Words|Input]: {t}\n[Comma list|With commas|List]:", "Each word but the last gets a comma: {t}", "Write commas between all of them: {t}",
        "[List|Enumerate] these words, separated by commas: {t}", "[I need|Give me] the words as a list[, divided by commas|, commas between them]: {t}", "Split the words with commas.\n{t}", "Make it a list like a, b, c: {t}"],
    "What is the first word? {t}": [
        "[Which|What] word [comes first|is first|is at the start|stands first|does the text start with|opens the text][ here|]? {t}", "{t}\n\n[What is the first word|First word|Which word comes first][ above| of this|]?",
        "[Say|Write|Print|Show|Return|Find|Pick|Copy] [only |just |]the first word[: |.\n| of this: | here: ]{t}", "[First word|The first word|Word one|Word number 1][?|:|, please:] {t}",
        "With which word does [it|this|the line] [start|begin]? {t}", "How does [it|this line|the text] begin? {t}", "[Text|Line|Words|Input]: {t}\n[First word|First]:", "I [need|want] only the first word[: |.\n]{t}",
        "[Could|Can] you [give me|find|say] the first word? {t}", "The [text|line] [begins|starts] with which word? {t}", "Forget everything but the first word: {t}"],
    "What is the last word? {t}": [
        "[Which|What] word [comes last|is last|is at the end|stands last|does the text end with|closes the text][ here|]? {t}", "{t}\n\n[What is the last word|Last word|Which word comes last][ above| of this|]?",
        "[Say|Write|Print|Show|Return|Find|Pick|Copy] [only |just |]the last word[: |.\n| of this: | here: ]{t}", "[Last word|The last word|Final word|The word at the end][?|:|, please:] {t}",
        "With which word does [it|this|the line] [end|stop|finish]? {t}", "How does [it|this line|the text] end? {t}", "[Text|Line|Words|Input]: {t}\n[Last word|Last]:", "I [need|want] only the last word[: |.\n]{t}",
        "[Could|Can] you [give me|find|say] the last word? {t}", "The [text|line] [ends|stops] with which word? {t}", "Forget everything but the last word: {t}"],
}
COUNTS = {
    "How many words are there? {t}": [
        "Count [these|the entries|the elements|all words|everything in the list][: |.\n]{t}", "{t}\n\n[How many are these|How many words are above|Count them|How many]?",
        "[What is|Tell me|Give me|Find|I need] the number of [items|words|entries|elements][ here| in this list|]: {t}", "How [long|big] is [this list|the list]? {t}", "[Length of the list|Number of words|Number of items|Count][?|:] {t}",
        "How many [entries|elements|things|items|words] [are listed|can you count|do you see|are these|stand here|are in this list]? {t}", "[List|Words|Items|Input]: {t}\n[How many|Count|Number]?", "[Could|Can] you count [these|the words|the items]? {t}"],
    "How often does {x} occur? {t}": [
        "How [often|many times] [is|do you see|can you find|do you find|is there] {x}[ here| in the list|]? {t}", "{t}\n\n[How often is {x} there|How many times does {x} occur above|Count {x}|How many {x}]?",
        "[What is|Give me|Find|Tell me] the number of {x}[ here| in this list|]: {t}", "[Count|Count only|Count every] {x}[: | in the list: |.\n]{t}", "How many {x} are [there|here|in the list]? {t}", "Number of {x}[?|:] {t}",
        "[List|Words|Items|Input]: {t}\n[How often|How many times|Count of] {x}?", "[Could|Can] you count [how often {x} is there|the {x}]? {t}", "In this list, how often [is|do we have] {x}? {t}"],
    "Count from {a} to {b}.": [
        "[Say|Give me|Show|Print|Write down|Type|Name] [the|all|all the] numbers from {a} to {b}.", "Numbers from {a} [to|until|through] {b}[.|, please.]", "[Start|Begin] at {a} and [count|go on] [to|until] {b}.",
        "[Could|Can] you count from {a} to {b}?", "{a} to {b}, [all numbers|one by one|in order|please count].", "Every number from {a} to {b}[.|, in order.]", "Which numbers [go|run|lead] from {a} to {b}?", "Count: {a} [to|until] {b}"],
    "Sort these numbers from small to large: {t}": [
        "[Sort|Order|Arrange|Rank|Line up] [the numbers|them|the list|these values] [in ascending order|from lowest to highest|from low to high|upwards|in rising order|increasing]: {t}",
        "{t}\n\n[Sort these in ascending order|Smallest to largest, please|Order them, lowest first].", "[Ascending|Increasing|Lowest first|From low to high|Small to large][, please|]: {t}", "[Start|Begin] with the smallest [number|one] and go up: {t}",
        "[List|Write|Give me|Show] the numbers [from small to big|in rising order|in increasing order|starting with the lowest]: {t}", "[Could|Can] you [sort|order] these [upwards|ascending|from small to large]? {t}", "[Numbers|Input|List]: {t}\n[Ascending|Sorted up|From small to large]:"],
    "Sort these numbers from large to small: {t}": [
        "[Sort|Order|Arrange|Rank|Line up] [the numbers|them|the list|these values] [in descending order|from highest to lowest|from high to low|downwards|in falling order|decreasing]: {t}",
        "{t}\n\n[Sort these in descending order|Largest to smallest, please|Order them, highest first].", "[Descending|Decreasing|Highest first|From high to low|Large to small][, please|]: {t}", "[Start|Begin] with the largest [number|one] and go down: {t}",
        "[List|Write|Give me|Show] the numbers [from big to small|in falling order|in decreasing order|starting with the highest]: {t}", "[Could|Can] you [sort|order] these [downwards|descending|from large to small]? {t}", "[Numbers|Input|List]: {t}\n[Descending|Sorted down|From large to small]:"],
    "Sort these letters alphabetically: {t}": [
        "[Arrange|Rank|Sort|Line up] [the letters|them|these] [in alphabetical order|from a to z|by the alphabet|as in the alphabet]: {t}", "{t}\n\n[Sort these letters|Alphabetical order, please|Put them in order of the alphabet].",
        "[Alphabetically|In alphabetical order|From a to z|Alphabetical][, please|]: {t}", "[List|Write|Give me|Show] the letters [in the order of the alphabet|as they come in the alphabet|from a to z]: {t}",
        "[Could|Can] you sort these letters? {t}", "[Letters|Input|List]: {t}\n[Sorted|In order|A to z]:"],
    "Which number is the largest? {t}": [
        "[What is|Give me|Name|Say|Show|Pick|Tell me] the [biggest|highest|greatest|top|maximum] [number|value][ here| in this list|]: {t}", "{t}\n\n[Which is the largest|What is the maximum|Name the biggest number].",
        "[Maximum|Largest|Biggest|Highest|Max][?|:|, please:] {t}", "[Which|What] [one|value] is [the biggest|the highest|the greatest|larger than all others]? {t}", "[Could|Can] you find the [biggest|highest] one? {t}", "[Numbers|Input|List]: {t}\n[Maximum|Largest|Max]:"],
    "Which number is the smallest? {t}": [
        "[What is|Give me|Name|Say|Show|Pick|Tell me] the [lowest|least|minimum|tiniest] [number|value][ here| in this list|]: {t}", "{t}\n\n[Which is the smallest|What is the minimum|Name the lowest number].",
        "[Minimum|Smallest|Lowest|Least|Min][?|:|, please:] {t}", "[Which|What] [one|value] is [the lowest|the least|smaller than all others]? {t}", "[Could|Can] you find the [lowest|least] one? {t}", "[Numbers|Input|List]: {t}\n[Minimum|Smallest|Min]:"],
}
MORE = {**EDIT, **COUNTS, **phrasings_facts.MORE, **phrasings_tools.MORE}

OPENINGS = ["Hello! ", "Hi. ", "Hello there. ", "Good day! ", "Please: ", "Please help me. ", "Here is a task. ", "One more: ", "Next: ", "OK. ",
            "Thanks. ", "Hey, ", "Hi, ", "Now ", "Please ", "Then ", "Well, ", "And now: ", "Task: ", "User request: ", "A small job:\n", "Hello,\n"]
CLOSINGS = [" Thanks.", " Thank you!", " Please.", "\nThanks!", " Be exact.", " Only the answer, please.", "\n\nThank you.", " Take care.", " It is important."]
SAID = ["Hello! ", "Hi. ", "Listen: ", "Just so you know: ", "Note this. ", "One more thing. ", "For your notes: ", "Well, ", "OK. ", "Also, ", "Remember: ",
        "FYI: ", "You should know this: ", "Something else. ", "And "]
SAID_END = [" Remember that.", " Keep it in mind.", " Thanks.", " Please note it.", " That is important.", " OK?"]
QUOTES = ['"{}"', "'{}'", "`{}`", "«{}»", "[{}]", "<text>{}</text>", "---\n{}\n---", "({})"]


def plain(text):
    """A phrasing without case, punctuation, spacing and politeness: what must differ from every held-out phrasing."""
    if isinstance(text, tuple):
        return plain(text[0])
    kept = re.findall(r"\{\w+\}|\w+", text.lower())
    return " ".join(w for w in kept if w not in ("please", "now"))


def expand(pattern):
    if isinstance(pattern, tuple):
        return [pattern]
    parts = [p[1:-1].split("|") if p.startswith("[") else [p] for p in re.split(r"(\[[^\]]*\])", pattern) if p]
    return ["".join(choice) for choice in product(*parts)]


def sides(templates):
    """(training part, held-out part) of a list: the last quarter, at least one, is held out."""
    keep = max(1, len(templates) - max(1, len(templates) // 4))
    return templates[:keep], templates[keep:]


CACHE = {}


def training(templates):
    """(groups of training phrasings, forbidden plain forms) of a template list."""
    key = tuple(templates)
    if key not in CACHE:
        train, held = sides(templates)
        banned = {plain(h) for h in held}
        groups = [[t] for t in train]
        for pattern in MORE.get(templates[0], ()):
            group = [t for t in expand(pattern) if plain(t) not in banned]
            if group:
                groups.append(group)
        CACHE[key] = groups, banned
    return CACHE[key]


def lower_first(text):
    return text if text.startswith(("I ", "{", "In Velmora")) or not text[1:2].islower() else text[0].lower() + text[1:]


def join(opening, text):
    return opening + (lower_first(text) if not opening.endswith((". ", "! ", ": ", "\n")) else text)


def ask(rng, templates, text, quotes):
    """A request with some surroundings. `quotes`: {t} is running text that may be set off."""
    out = text
    if quotes and rng.random() < 0.15:
        out = out.replace("{t}", rng.choice(QUOTES).format("{t}"))
    if quotes and rng.random() < 0.15:
        mark = rng.choice(QUOTES[:4])
        out = out.replace("{x}", mark.format("{x}")).replace("{y}", mark.format("{y}"))
    if rng.random() < 0.15 and " {t}" in out:
        out = out.replace(" {t}", rng.choice(("\n", "\n\n")) + "{t}")
    if rng.random() < 0.06:
        out = lower_first(out).rstrip(".")
    if rng.random() < 0.18:
        out = join(rng.choice(OPENINGS), out)
    if rng.random() < 0.12 and not out.endswith(("}", ":")):
        out += rng.choice(CLOSINGS) if out[-1] in ".!?" else "." + rng.choice(CLOSINGS)
    return text if plain(out) in training(templates)[1] else out


def tell(rng, templates, text):
    """A statement with some surroundings."""
    out = join(rng.choice(SAID), text) if rng.random() < 0.15 else text
    if rng.random() < 0.1:
        out += rng.choice(SAID_END)
    return text if plain(out) in training(templates)[1] else out
