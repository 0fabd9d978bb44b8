"""The official client libraries read our streams: PyPI `openai` (Chat Completions, Responses) and `anthropic` (Messages).

usage: sdk_clients.py PATH/edge_records

A transport inside the client answers with the very frames the writers make; nothing listens on a port. What the libraries add up must
be the final object, and what they get without streaming must be equal to it.
"""
import json
import os
import subprocess
import sys

try:
    import anthropic
    import openai

    try:
        import httpx2 as httpx  # what the clients are built on
    except ImportError:
        import httpx
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

DSML = "｜DSML｜"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VOCABULARY = os.path.join(ROOT, "models", "deepinfer-tiny", "tokenizer.json")
REPLY = ("two and\ntwo\n</think>\nIt is 4 中文 😀 \u2028 end.\n\n" + f"<{DSML} calls>\n<{DSML} invoke name=\"get_weather\">\n<{DSML} parameter name=\"city\" string=\"true\">Athens \"A\"</{DSML} parameter>\n"
         f"<{DSML} parameter name=\"days\" string=\"false\">[1, 2]</{DSML} parameter>\n</{DSML} invoke>\n<{DSML} invoke name=\"now\">\n</{DSML} invoke>\n</{DSML} calls>")
ARGUMENTS = {"city": "Athens \"A\"", "days": [1, 2]}


def answer(program, protocol, pieces, **options):
    job = {"do": "parse", "protocol": protocol, "options": {"id": "R", "model": "deepseek-flash", "created": 5, **options},
           "pieces": [{"ready": {"prompt_tokens": 12, "cache_hit_tokens": 8}}] + pieces + [{"finish": "stop"}]}
    out = subprocess.run([program, VOCABULARY], input=json.dumps(job).encode() + b"\n", stdout=subprocess.PIPE, check=True).stdout
    result = json.loads(out)
    frames = "".join((f"event: {e['event']}\n" if e["event"] else "") + f"data: {e['data']}\n\n" for e in result["events"])
    return frames.encode(), result["final"]


def transport(frames, final):
    def handle(request):
        if json.loads(request.content).get("stream"):
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=frames)
        return httpx.Response(200, json=final)

    return httpx.Client(transport=httpx.MockTransport(handle))


def check(what, have, want):
    if have != want:
        sys.exit(f"FAILED: {what}\n  have {have!r}\n  want {want!r}")


def pieces_of(step):
    return [{"text": REPLY[i : i + step], "tokens": 1} for i in range(0, len(REPLY), step)]


def chat(program, step):
    frames, final = answer(program, "chat", pieces_of(step), include_usage=True)
    client = openai.OpenAI(api_key="none", base_url="http://local/v1", http_client=transport(frames, final))
    ask = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0]
    check("chat reasoning", message.message.reasoning_content, "two and\ntwo")
    check("chat content", message.message.content, "It is 4 中文 😀 \u2028 end.")
    check("chat finish", message.finish_reason, "tool_calls")
    calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.message.tool_calls]
    check("chat calls", calls, [("call_R_0", "get_weather", ARGUMENTS), ("call_R_1", "now", {})])
    whole = client.chat.completions.create(**ask)
    check("chat whole", whole.choices[0].message.content, message.message.content)
    check("chat usage", whole.usage.prompt_tokens_details.cached_tokens, 8)


def responses(program, step):
    frames, final = answer(program, "responses", pieces_of(step))
    client = openai.OpenAI(api_key="none", base_url="http://local/v1", http_client=transport(frames, final))
    with client.responses.stream(model="m", input="x") as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    check("responses text", response.output_text, "It is 4 中文 😀 \u2028 end.")
    check("responses items", [i.type for i in response.output], ["reasoning", "message", "function_call", "function_call"])
    check("responses reasoning", response.output[0].content[0].text, "two and\ntwo")
    check("responses arguments", json.loads(response.output[2].arguments), ARGUMENTS)
    check("responses usage", response.usage.input_tokens_details.cached_tokens, 8)
    check("responses whole", client.responses.create(model="m", input="x").output_text, response.output_text)


def messages(program, step):
    frames, final = answer(program, "messages", pieces_of(step))
    client = anthropic.Anthropic(api_key="none", base_url="http://local", http_client=transport(frames, final))
    ask = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}
    with client.messages.stream(**ask) as stream:
        for _ in stream:
            pass
        message = stream.get_final_message()
    check("messages blocks", [b.type for b in message.content], ["thinking", "text", "tool_use", "tool_use"])
    check("messages thinking", (message.content[0].thinking, message.content[0].signature), ("two and\ntwo", "R"))
    check("messages text", message.content[1].text, "It is 4 中文 😀 \u2028 end.")
    check("messages input", (message.content[2].input, message.content[3].input), (ARGUMENTS, {}))
    check("messages stop", message.stop_reason, "tool_use")
    check("messages usage", (message.usage.input_tokens, message.usage.cache_read_input_tokens), (4, 8))
    whole = client.messages.create(**ask)
    check("messages whole", [b.to_dict() for b in whole.content], [json.loads(json.dumps(b)) for b in final["content"]])


def main():
    if not os.path.exists(VOCABULARY):
        print(f"SKIPPED: {VOCABULARY} is not there")
        sys.exit(77)
    for step in (1, 7, 1000):
        for protocol in (chat, responses, messages):
            protocol(sys.argv[1], step)
    print(f"openai {openai.__version__} and anthropic {anthropic.__version__} read the three streams, in pieces of 1, 7 and 1000 characters")


main()
