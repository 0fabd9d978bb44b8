"""Renders conversations into the V4.1 chat template (request edge specification 3.4 and 3.5) with loss weights.

A sample is a list of (text, weight): the text carries control spellings, the weight is what the trainer gives each of
its tokens. Segments meet only at control tokens, so they can be tokenised one by one. The generated texts never contain
a control spelling of their own, so encoding the flat text equals encoding spans.
"""
import json

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"
# In id order behind the merges; the first three have ids 0..2. `special` as in the released tokenizer.
SPECIALS = [(SYSTEM, False), ("<｜fim▁hole｜>", False), ("<｜fim▁begin｜>", False), ("<｜fim▁end｜>", False), (USER, False),
            (ASSISTANT, False), (THINK, False), (END_THINK, False), (DSML, False), ("<｜latest_reminder｜>", False),
            ("<｜action｜>", False), ("<｜query｜>", False), ("<｜authority｜>", False), ("<｜domain｜>", False),
            ("<｜title｜>", False), ("<｜read_url｜>", False), ("<｜image｜>", True)]

EFFORT = {"low": 50, "high": 75, "max": 100}
PROMPT_WEIGHT, SECTION_WEIGHT = 0.1, 0.02

SECTION = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{S}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def pj(value):
    """JSON as the edge prints it: ", " and ": ", non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False)


def call_block(calls):
    """calls: list of (name, arguments)."""
    lines = [f"<{DSML} calls>"]
    for name, arguments in calls:
        lines.append(f'<{DSML} invoke name="{name}">')
        rows = []
        for key, value in arguments.items():
            text, flag = (value, "true") if isinstance(value, str) else (pj(value), "false")
            rows.append(f'<{DSML} parameter name="{key}" string="{flag}">{text}</{DSML} parameter>')
        lines.append("\n".join(rows))
        lines.append(f"</{DSML} invoke>")
    lines.append(f"</{DSML} calls>")
    return "\n".join(lines)


def render(messages, thinking=False, tools=(), effort="high"):
    """messages: dicts with role system | user | tool | assistant; content; assistant may have reasoning, calls.

    Returns (text, weight) segments that end with the last message; if that is not an assistant turn, the generation
    opener is added, so the same function renders training samples and evaluation prompts.
    """
    messages = list(messages)
    if tools and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": ""})
    out = [(BOS, 0.0)]
    if thinking or messages[0]["role"] == "system":
        head = SYSTEM
        if thinking:
            head += f"Reasoning Effort: {EFFORT[effort]} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        out.append((head, SECTION_WEIGHT))
    previous = None
    for index, m in enumerate(messages):
        role, content = m["role"], m.get("content", "")
        if role == "system":
            text = (SYSTEM if index else "") + content
            if index == 0 and tools:
                lines = "\n".join(pj({"name": t["name"], "description": t["description"], "parameters": t["parameters"]})
                                  for t in tools)
                # "\n\n" joins the system text and the section; both stay one text run behind the System token.
                head, tail = SECTION.split("{S}")
                out[-1] = (out[-1][0] + text + "\n\n" + head + lines + tail, SECTION_WEIGHT)
            elif index == 0:
                out[-1] = (out[-1][0] + text, PROMPT_WEIGHT)
            else:
                out.append((text, PROMPT_WEIGHT))
        elif role in ("user", "tool"):
            body = content if role == "user" else f"<tool_result>{content}</tool_result>"
            if previous in ("user", "tool"):
                out[-1] = (out[-1][0] + "\n\n" + body, PROMPT_WEIGHT)
            else:
                out.append((USER + body, PROMPT_WEIGHT))
        else:
            text = content
            if m.get("calls"):
                text += "\n\n" + call_block(m["calls"])
            if thinking:
                out.append((ASSISTANT + THINK, 0.0))
                text = m.get("reasoning", "") + END_THINK + text
            else:
                out.append((ASSISTANT + END_THINK, 0.0))
            out.append((text + EOS, m.get("weight", 1.0)))
        previous = role
    if previous != "assistant":
        out.append((ASSISTANT + (THINK if thinking else END_THINK), 0.0))
    return out
