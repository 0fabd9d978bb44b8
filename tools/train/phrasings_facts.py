"""Training phrasings of recall, needles, stories, the invented world and small talk; see phrasings.py for the notation."""

MORE = {
    # ---- recall: what is told, then what is asked
    "My name is {v}.": [
        "[Everybody|Everyone|My friends|People|They all] [calls|call] me {v}.", "[Hello|Hi|Good day], [I am|I'm|this is|here is] {v}.", "[This is|Here speaks|It is] {v}[ speaking| writing|].", "I'm {v}.", "[The name is|Name:|Call me] {v}.",
        "[My parents named|They named|They baptised] me {v}.", "I [go by|answer to|introduce myself as] {v}.", "[Please write down|Note] my name: {v}.", "My [full name|passport name] is {v}.", "{v} is my name.", "{v} [here|speaking].", "I was [born|named] {v}."],
    "What is my name?": [
        "What's my [name|full name]?", "[Tell me|Say|Repeat|Write] my name.", "[How|By what name] do [people|they] call me?", "What am I called?", "[Do you|Can you|Could you] [recall|still know|say] [my name|who I am]?", "[What|Which] name did I [give|tell you|mention]?",
        "[Remind me|Sorry|Well|So]: [what is my name|who am I]?", "My name is?", "Who is [talking|speaking|writing] to you?", "I forgot my [own |]name. What is it?", "What do they call me?", "Name?", "[With whom|To whom] are you [speaking|talking]?"],
    "I live in {v}.": [
        "I [stay|reside|dwell|work and live|have a flat|have a house] in {v}.", "[My city|My town|My place|My address|The town I live in|The city where I live] is {v}.", "I am from {v}.", "I'm [from|at home in|living in] {v}.", "{v} is [my home|where I live|my city|the town I live in].",
        "[We|My family and I] [live|settled] in {v}.", "I [moved|went] to {v} [last year|long ago|and stayed there].", "My [house|flat|family] is in {v}.", "[Home|City|Town]: {v}.", "You [find|can visit] me in {v}."],
    "Where do I live?": [
        "[Where|In which town|In which place] is my [home|house|flat]?", "[Which|What] [town|place|city] [am I from|do I come from|is my home|did I name]?", "Where am I [from|at home]?", "[Tell me|Say|Repeat|Write] where I live.", "[Name|Tell me] my [city|town|home].", "What is my [city|town|place]?",
        "[Do you|Can you|Could you] [recall|remember|tell|know] where I live?", "[What|Which] city did I [mention|tell you]?", "Where can [people|one] visit me?", "My [home|city|town] is?", "[Remind me|So]: where do I live?", "City?"],
    "My favorite color is {v}.": [
        "[I love|I like|I prefer|I adore|I choose] {v}[ above all colors| over all other colors| most of all|].", "{v} is my [favorite|favorite color|color|first choice].", "[My color|The color for me|The best color|The nicest color] is {v}.", "[For me|To me] the [best|nicest|finest] color is {v}.",
        "Of all colors I [like|love|prefer] {v} [most|best].", "[Color|Favorite color]: {v}.", "No color is [nicer|better] than {v}.", "I [paint|want] everything {v} because I love that color.", "If I could pick a color, it would be {v}."],
    "What is my favorite color?": [
        "[Which|What] color do I [prefer|adore|like best|choose|love most]?", "What's my [favorite|best|preferred] color?", "[Tell me|Say|Repeat|Name] my favorite color.", "[Do you|Can you|Could you] [recall|remember|tell me|know] [my favorite color|which color I like]?",
        "[Which|What] color did I [mention|name|tell you]?", "[Remind me|So]: what is my color?", "My favorite color is?", "What color would I pick?", "For me, which color is the [best|nicest]?", "Color?"],
    "My dog is called {v}.": [
        "[I call|We call|Everyone calls] my dog {v}.", "My dog [answers to|listens to|goes by] {v}.", "[I own|We have|I got|I keep] a dog [called|by the name of|with the name] {v}.", "{v} is [my dog|the name of my dog|what I call my dog|how my dog is called].", "[My pet|The dog] is [called|named] {v}.",
        "[We|I] named [the|our|my] dog {v}.", "[Dog|My dog]: {v}.", "I [walk|feed|love] my dog {v}[ every day|].", "My [little|old|young|brown] dog has the name {v}."],
    "What is my dog called?": [
        "[What's|Tell me|Say|Repeat] [my dog's name|the name of my dog].", "[Who|Which dog] is my dog?", "How do I call my dog?", "What do [I|we] call [my|the|our] dog?", "[Which|What] name [has|does] my dog[ have|]?", "[Can you|Could you|Do you] [recall|say|know|tell me] [my dog's name|how my dog is called]?",
        "[Which|What] name did I give my dog?", "[Remind me|So]: the name of my dog?", "My dog is called?", "To what name does my dog listen?", "What was my [pet|dog] called?"],
    "My lucky number is {v}.": [
        "[Keep|Store|Note|Save|Write down|Do not forget] [the|this] number[:|] {v}.", "The number [I like|I chose|I picked|to keep|for you|of the day|I have in mind] is {v}.", "{v} is [my number|the number|my lucky number|a number to remember].", "[My number|Number|Your number]: {v}.",
        "I [chose|picked|thought of|give you] the number {v}.", "[Today|Now] the number is {v}.", "[I say|I tell you|Here is a number]: {v}.", "I have number {v}.", "My number is {v}."],
    "What was the number?": [
        "[Which|What] number [was it|did I say|did I mention|did I name|did I choose|should you keep|is it]?", "[Tell me|Say|Repeat|Give me|Name|Write] the number[ again|].", "What's [the|my] number?", "What is [the|my] number?", "[Can you|Could you|Do you] [recall|repeat|tell me|know] the number?",
        "[Remind me|So]: the number?", "The number is?", "The number, please.", "I forgot the number. [Which was it|What is it]?", "Number?"],
    "My next meeting is on {v}.": [
        "[There is|We have|They planned|They set] [a|the|my] meeting [on|for] {v}.", "{v} is [the day of my meeting|the day we meet|when my meeting is|when we meet].", "[My meeting|The next meeting|The appointment] [takes place|happens|is planned|starts] on {v}.",
        "I [meet|see] [my boss|the team|my friends|them] on {v}.", "[Meeting|Next meeting|Day of the meeting]: {v}.", "They [wait for|expect] me at the meeting on {v}.", "I must go to a meeting on {v}.", "On {v} [I have a meeting|there is a meeting|we meet]."],
    "When is my meeting?": [
        "[When|On what day|On which weekday] [do I meet them|do we meet|is the meeting|does the meeting take place|is my next meeting|must I be there]?", "[Tell me|Say|Repeat|Name] [the day of|when I have] my meeting.", "What day [do we meet|did I say for the meeting|is the appointment]?",
        "[Can you|Could you|Do you] [recall|remember|tell me|know] [when my meeting is|the day of the meeting]?", "[Remind me|So]: when is it?", "The meeting is on?", "For which day is my meeting planned?", "Which day did I [mention|name]?"],
    "I lost my {v}.": [
        "I [found|saw|sold|broke|repaired|want|wanted|got|have|borrowed|ordered|painted] a {v}[ yesterday| today| this morning| last week|].", "[There is|I just saw] a {v} [in my room|in the garden|on my desk|at home|here].", "My {v} is [broken|gone|new|old|too small].", "[Where is|Have you seen] my {v}?",
        "[Somebody|My brother|A friend] [gave me|took|stole|sent me] a {v}.", "A {v} is what I [need|want|miss].", "I [think|dream|talk] about a {v}.", "Let us talk about a {v}.", "I would [like|love] to have a {v}."],
    "What did I talk about?": [
        "[Which|What] [object|item] did I [mention|name|talk about|tell you about]?", "[What|Which] thing [was I talking about|did I tell you about|did I name]?", "[Tell me|Say|Repeat|Name] [the thing|what thing] I [mentioned|talked about].", "What was [it|the thing|the object]?",
        "[Can you|Could you|Do you] [recall|remember|tell me|know] what I talked about?", "[Remind me|So]: what was it about?", "What was it that I told you about?", "What was my [topic|subject]?", "About which thing did I speak?"],
    "I am {v} years old.": [
        "[I'm|I am] {v}[ years of age| now|].", "[I have been alive for|I have lived for|I count] {v} years.", "[Age|My age]: {v}.", "{v} is my age.", "[I turned|I became] {v} [last week|this year|yesterday].", "[On my last birthday|This year|Yesterday] I [turned|became] {v}.",
        "They say I look young, but I am {v}.", "I was born {v} years ago.", "My birthday cake had {v} candles.", "I will be {v} [soon|today|tomorrow]."],
    "How old am I?": [
        "What's my age?", "[Tell me|Say|Repeat|Name|Give me] my age.", "[Which|What] age did I [give|mention|tell you]?", "[Can you|Could you|Do you] [recall|remember|know|say] [my age|how old I am]?",
        "[Remind me|So]: how old am I?", "My age is?", "How many years have I lived?", "How many years old am I?", "Age?", "I forgot my age. What is it?"],
    # ---- needles: the fact, then its question
    "The secret code of {x} is {v}.": [
        "{v} is the [code|secret code|code word] [of|for] {x}.", "[For|With] {x} you need the code {v}.", "{x} [opens|works|starts] with the code {v}.", "{x} [has|uses|needs|carries|got] the code {v}.", "[The|A] [number|code] [written|printed] on {x} is {v}.",
        "[Somebody|A man|The guard] [set|wrote down|told me] the code of {x}: {v}.", "To [open|use] {x}, [enter|type|dial] the code {v}.", "[Keep in mind|Do not forget|Important]: the [secret |]code [of|for] {x} is {v}.", "The code that belongs to {x} is {v}."],
    "What is the secret code of {x}?": [
        "[What's|Say|Give me|Find|Name|Repeat] the [secret |]code [of|for] {x}.", "[What|Which] [code|number] [has|does] {x}[ have| use| need|]?", "[Which|What] code [opens|is for|works for|do I need for|goes with] {x}?", "[Do you know|Can you find|Could you tell me] the code [of|for] {x}?", "The code of {x}?", "Code for {x}:", "How do I open {x}, what is the code?"],
    "{x} keeps the treasure in {v}.": [
        "{x} [stored|put|buried|brought|took|locked] the treasure in {v}.", "{v} is where {x} [keeps|hid|has] the treasure.", "In {v} [lies|is] the treasure of {x}.", "The [treasure|gold] of {x} [lies|can be found|is hidden|was buried|rests] in {v}.", "{x} [owns|hides|guards] a treasure in {v}.",
        "[They say|It is known] that the treasure of {x} is in {v}.", "{x}'s treasure is in {v}.", "The place where {x} [hid|left] the treasure is {v}."],
    "Where is the treasure of {x}?": [
        "[Where|In which town|In what place] [is|lies|does {x} keep|did {x} put|has {x} hidden] the treasure[ of {x}|]?", "[Say|Find out|Name the place] where {x} [hid|keeps|left] the treasure.", "[What|Which] [town|place|city] [holds|has] the treasure of {x}?", "Where can I find the treasure of {x}?",
        "[Do you know|Can you tell me] where the treasure of {x} is?", "The treasure of {x} is where?", "Where is {x}'s treasure?", "{x} has a treasure. Where?"],
    "The password of {x} is {v}.": [
        "{v} is the password [of|for|in|at] {x}.", "[To enter|To get into|For] {x} [say|use|type] the password {v}.", "{x} [has|needs|accepts|chose|set] the password {v}.", "[At|Inside] {x} the password is {v}.", "[Everybody|Nobody else|The guard] knows the password of {x}: {v}.", "The [secret word|login] is another thing, but the password of {x} is {v}.", "{x}'s password is {v}.", "Password of {x}: {v}."],
    "What is the password of {x}?": [
        "[What's|Say|Find|Name|Repeat] the password [of|for] {x}.", "[What|Which] password [opens|is for|do I need for|works for|has|belongs to] {x}?", "What is {x}'s password?", "With [what|which] password do I get into {x}?", "[Do you know|Can you find|Could you tell me] the password [of|for] {x}?", "The password of {x}?", "Password for {x}:", "How do I get into {x}, what is the password?"],
    "{x} is painted {v}.": [
        "{x} [is|looks|shines|was] {v}.", "[Somebody|They|We|A painter] [made|colored|sprayed] {x} {v}.", "{v} is the color of {x}.", "[Everyone|Nobody] likes it, but {x} is {v}.", "{x} was painted {v}[ last year| long ago|].", "The paint on {x} is {v}.", "{x} comes in {v}.", "{x} got a {v} coat of paint."],
    "What color is {x}?": [
        "[What|Which] color [does {x} have|did they paint {x}|is the paint of {x}|was {x} painted]?", "[Say|Find|Name|Give me] the color of {x}.", "How is {x} painted?", "In [what|which] color is {x} painted?", "[Do you know|Can you tell me|Could you find] the color of {x}?", "The color of {x}?", "Color of {x}:", "{x} is of which color?"],
    "{t}\n\n{q}": [
        "{q}\n\n{t}", "{q}\n[Text|Source|Passage|Look here|Search here]: {t}", "[Here is a text|Look at this|Read|Read this|Consider this passage|A text follows|Document]:\n{t}\n\n{q}", "[Passage|Document|Story|Context|Article]: {t}\n[Question|Q|Task|Answer this]: {q}", "Context:\n{t}\n\n[Question|Q]: {q}\n[Answer|A]:",
        "{t}\n[My question|Question|Now answer|Now tell me]: {q}", "I have a question about a text. {q}\n\n{t}", "[Use|Search] the text to answer. {q}\n---\n{t}\n---", "<text>\n{t}\n</text>\n{q}", "[Answer from the text|After reading, answer]: {q}\n\n{t}"],
    # ---- generic facts of the training side
    "My {k} is {v}.": ["[The|Note: my] {k} [of mine is|is] {v}.", "{v} is my {k}.", "[I have|I use|I chose] the {k} {v}.", "[Remember|Note|Keep in mind]: my {k} is {v}.", "{k}: {v}.", "For my {k} I [have|took|picked] {v}.", "As {k} I [have|like] {v}.", "My {k}? It is {v}."],
    "What is my {k}?": ["[Tell me|Say|Repeat|Name] my {k}.", "What's my {k}?", "[Which|What] {k} [do I have|did I mention|did I tell you|is mine]?", "[Can you|Could you|Do you] [recall|remember|tell me|know] my {k}?", "My {k} is?", "[Remind me|So]: my {k}?", "What did I say my {k} is?", "{k}?"],
    "The {k} of {x} is {v}.": ["{v} is the {k} of {x}.", "{x} has {v} as {k}.", "{x} [has|uses|owns] the {k} {v}.", "{x}: {k} {v}.", "[As|For its|For the] {k}, {x} [has|got|took|chose] {v}.", "[They|People|We] say the {k} of {x} is {v}.", "[Note|Remember]: {x}'s {k} is {v}.", "{x}'s {k} is {v}.", "For {x} the {k} is {v}."],
    "What is the {k} of {x}?": ["[Tell me|Say|Find|Name|Give me] the {k} of {x}.", "[What|Which] {k} [has {x}|does {x} have|belongs to {x}]?", "What is {x}'s {k}?", "The {k} of {x}?", "[Do you know|Can you find|Could you tell me|I need] the {k} of {x}?", "{k} of {x}:"],
    # ---- stories, world, talk
    "Tell me a story about {n}.": [
        "[I want|I would like] [to hear|to read] a [short |]story about {n}[ and a {o}|].", "[Make up|Invent|Think of|Give me|Start] a [short |little |]story [about|with] {n}[ and a {o}|].", "[Could|Can] you [tell|write] [a|me a] story about {n}[ and a {o}|]?", "What happened to {n}[ and the {o}|]?", "Story time: {n}[ and a {o}|].", "A [short |little |]tale [of|about] {n}[ and a {o}|][, please|].", "{n} is the hero of your [next |]story[, with a {o}|]."],
    "Which river flows through {t}?": ["[On|At|By] [which|what] river [is|stands|was built] {t}?", "[Say|Give me|Find|Tell me] the river [of|at|near] {t}.", "[What|Which] river [does {t} lie on|runs through {t}|passes {t}|belongs to {t}]?", "The river of {t}?", "What is the name of the river [of|at|in] {t}?", "{t} has which river?", "[Do you know|Can you tell me] the river of {t}?"],
    "Who rules {t}?": ["[Who|Which person] [governs|reigns in|reigns over|leads|is the head of|commands] {t}?", "[Say|Give me|Tell me] the ruler of {t}.", "By whom is {t} ruled?", "{t} is ruled by whom?", "[Do you know|Can you tell me] who rules {t}?", "The ruler of {t}?", "Whose town is {t}?"],
    "What is {t} known for?": ["[What|Which good] [does {t} produce|is made in {t}|does {t} trade|do they sell in {t}|does {t} export]?", "[Say|Name] [what|the good that] {t} [sells|is famous for|makes].", "What is {t} famous for?", "[Do you know|Can you tell me] what {t} is known for?", "The good of {t}?", "What can one buy in {t}?", "{t} is known for what?"],
    "What is the color of the flag of {t}?": ["[How|In which color] is the flag of {t}[ colored| painted|]?", "[Say|Name|Give me] the color of [the flag of {t}|{t}'s flag].", "[What|Which] color [is {t}'s flag|does the flag of {t} have|has {t} on its flag]?", "[Do you know|Can you tell me] [which color the flag of {t} has|the flag color of {t}]?", "The flag of {t} has which color?", "Flag color of {t}?"],
    "How many people live in {t}?": ["[Say|Name|Give me|State] [the population of {t}|how many people {t} has].", "How large is [the population of |]{t}?", "How many [inhabitants|citizens|people] [has|are in|are there in|dwell in] {t}?", "[Do you know|Can you tell me] [how big {t} is|the population of {t}]?", "Population of {t}?", "{t} has how many people?"],
    "Which town does {v} rule?": ["[Which|What] [town|place] is ruled by {v}?", "[Say|Name|Find] the town [of|that is ruled by] {v}.", "Of which town is {v} the ruler?", "[Do you know|Can you tell me] where {v} rules?", "{v} [governs|reigns in|is the ruler of|leads|commands] which town?", "The town of {v}?"],
    "Which town is known for its {v}?": ["[Which|What] [town|place] [makes|is famous for|produces|trades] {v}?", "[Say|Name|Find] the town [known for|that sells|of the] {v}.", "Where [is {v} made|can I buy {v}|do they sell {v}]?", "[Do you know|Can you tell me] which town [sells|makes] {v}?", "{v} comes from which town?", "From where do we get {v}?"],
    "What is the capital of {c}?": ["[What's|Say|Give me|Find] the capital [of|city of] {c}.", "[What|Which] [city|town] is {c}'s capital?", "{c} has [which|what] capital?", "The capital of {c}?", "[Do you know|Can you tell me] the capital of {c}?", "Capital of {c}:", "What is {c}'s capital[ city|]?"],
}
