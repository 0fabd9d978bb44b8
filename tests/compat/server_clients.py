"""The official client libraries against a running server: PyPI `openai` and `anthropic`, over HTTP.

usage: server_clients.py PATH/deepinfer [--engine serving|synthetic]

Starts `deepinfer serve` on a free port, asks it in every protocol, streamed and not, with tools, errors, retries, time limits and an
abort in mid-stream, and ends it with SIGTERM: it must exit with 0.
"""
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

try:
    import anthropic
    import openai
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}]
ASK = [{"role": "user", "content": "The code of the red door is 4711. What is the code of the red door?"}]
OFF = {"thinking": {"type": "disabled"}}


def start(program, engine):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    process = subprocess.Popen([program, "serve", "--listen", "127.0.0.1:0", "--engine", engine, "--model", os.path.join(ROOT, "models", "deepinfer-tiny"), "--api-key", "secret",
                                "--log-level", "warning", "--drain-grace-s", "5"], stdout=subprocess.PIPE, text=True, env=environment)
    line = process.stdout.readline()
    assert "http://" in line, f"no address: {line!r}"
    return process, line.split()[-1]


def get(base, path):
    with urllib.request.urlopen(base + path, timeout=30) as answer:
        return json.load(answer) if "json" in answer.headers["content-type"] else answer.read().decode()


def chat(client, name):
    whole = client.chat.completions.create(model=name, messages=ASK, max_tokens=24, temperature=0, seed=1, extra_body=OFF)
    streamed = ""
    usage = None
    for chunk in client.chat.completions.create(model=name, messages=ASK, max_tokens=24, temperature=0, seed=1, stream=True,
                                                stream_options={"include_usage": True}, extra_body=OFF):
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            streamed += chunk.choices[0].delta.content
    assert streamed == whole.choices[0].message.content, (streamed, whole)
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    several = client.chat.completions.create(model=name, messages=ASK, max_tokens=8, n=2, logprobs=True, top_logprobs=3, extra_body=OFF)
    assert len(several.choices) == 2 and several.choices[1].logprobs.content[0].top_logprobs
    tools = client.chat.completions.create(model=name, messages=ASK, max_tokens=16, tools=TOOLS, extra_body=OFF)
    assert tools.choices[0].finish_reason in ("stop", "length", "tool_calls")
    thinking = client.chat.completions.create(model=name, messages=ASK, max_tokens=16)
    assert thinking.choices[0].finish_reason in ("stop", "length")
    plain = client.completions.create(model=name, prompt="Once upon a time", max_tokens=8, temperature=0)
    assert plain.choices[0].finish_reason in ("stop", "length")
    assert name in [m.id for m in client.models.list().data]


WEATHER = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
           "required": ["unit", "days"], "additionalProperties": False}


def weather(arguments):
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(value) == {"unit", "days"} and value["unit"] in ("C", "F") and 1 <= value["days"] <= 14, value
    return value


def strict_tools(client, other, name):
    """A strict tool and a required call, through each library's own ways, whole and streamed."""
    function = {"name": "get_weather", "strict": True, "parameters": WEATHER}
    ask = dict(model=name, messages=ASK, max_tokens=200, temperature=1, seed=3, parallel_tool_calls=False, tools=[{"type": "function", "function": function}], extra_body=OFF)
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = client.chat.completions.create(tool_choice=choice, **ask).choices[0]
        assert whole.finish_reason == "tool_calls" and len(whole.message.tool_calls) == 1
        value = weather(whole.message.tool_calls[0].function.arguments)
        with client.chat.completions.stream(tool_choice=choice, **ask) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message
        assert weather(streamed.tool_calls[0].function.arguments) == value
    auto = client.chat.completions.create(tool_choice="auto", **ask).choices[0]
    for call in auto.message.tool_calls or []:
        weather(call.function.arguments)
    # The answer goes back with a result: the conversation goes on.
    messages = ASK + [whole.message, {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "sunny"}]
    client.chat.completions.create(model=name, messages=messages, max_tokens=8, tools=ask["tools"], extra_body=OFF)
    tool = {"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER}
    ask = dict(model=name, input=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, temperature=0, reasoning={"effort": "none"})
    made = client.responses.create(**ask)
    calls = [item for item in made.output if item.type == "function_call"]
    assert len(calls) == 1 and made.status == "completed"
    value = weather(calls[0].arguments)
    with client.responses.stream(**ask) as stream:
        final = [event for event in stream if event.type == "response.completed"][0].response
    assert weather([item for item in final.output if item.type == "function_call"][0].arguments) == value
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    made = client.responses.create(**dict(ask, tool_choice=allowed, tools=[tool, dict(tool, name="other")]))
    assert [item.name for item in made.output if item.type == "function_call"] == ["get_weather"]
    tools = [{"name": "get_weather", "input_schema": WEATHER, "strict": True}]
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
        ask = dict(model=name, max_tokens=200, messages=ASK, tools=tools, tool_choice=choice, thinking={"type": "disabled"}, extra_body={"temperature": 0})
        whole = other.messages.create(**ask)
        blocks = [b for b in whole.content if b.type == "tool_use"]
        assert whole.stop_reason == "tool_use" and len(blocks) == 1
        value = weather(blocks[0].input)
        with other.messages.stream(**ask) as stream:
            final = stream.get_final_message()
        assert weather([b for b in final.content if b.type == "tool_use"][0].input) == value
    bad = {"type": "object", "properties": {"q": {"type": "array", "uniqueItems": True}}}
    try:
        client.chat.completions.create(model=name, messages=ASK, tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": bad}}])
        raise AssertionError("a keyword that cannot be kept was taken")
    except openai.BadRequestError as e:
        assert "#/properties/q/uniqueItems" in str(e), e


def responses(client, name):
    first = client.responses.create(model=name, input="My name is Ada.", max_output_tokens=12, reasoning={"effort": "none"})
    assert first.status in ("completed", "incomplete")
    second = client.responses.create(model=name, input="And?", max_output_tokens=12, previous_response_id=first.id, reasoning={"effort": "none"})
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).id == first.id
    with client.responses.stream(model=name, input="Hello", max_output_tokens=12) as stream:
        events = list(stream)  # the library's own final object needs response.completed, and this answer may be cut by its limit
    kinds, final = [event.type for event in events], events[-1].response
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert final.usage.output_tokens > 0
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        raise AssertionError("a deleted response is still there")
    except openai.NotFoundError:
        pass


def messages(client, name):
    whole = client.messages.create(model=name, max_tokens=16, messages=ASK, thinking={"type": "disabled"}, extra_body={"temperature": 0})
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.content[0].type == "text"
    with client.messages.stream(model=name, max_tokens=16, messages=ASK, thinking={"type": "disabled"}, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, (text, whole)
    counted = client.messages.count_tokens(model=name, messages=ASK, thinking={"type": "disabled"})
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert name in [m.id for m in client.models.list().data]


def errors(base, name):
    client = openai.OpenAI(base_url=base + "/v1", api_key="secret", max_retries=0, timeout=60)
    for problem, ask in (
            (openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list()),
            (openai.NotFoundError, lambda: client.chat.completions.create(model="nobody", messages=ASK)),
            (openai.BadRequestError, lambda: client.chat.completions.create(model=name, messages=[])),
            (openai.BadRequestError, lambda: client.chat.completions.create(model=name, messages=ASK, temperature=7)),
            (openai.APITimeoutError, lambda: client.with_options(timeout=0.001).chat.completions.create(model=name, messages=ASK)),
    ):
        try:
            ask()
            raise AssertionError(f"no {problem.__name__}")
        except problem:
            pass
    try:
        anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0).messages.create(model=name, max_tokens=4, messages=ASK)
        raise AssertionError("a wrong key was taken")
    except anthropic.AuthenticationError as e:
        assert e.body["type"] == "error"
    # An abort in mid-stream: the engine must be idle again at once.
    stream = client.chat.completions.create(model=name, messages=ASK, max_tokens=400, stream=True, extra_body=dict(OFF, ignore_eos=True))
    next(iter(stream))
    stream.close()
    for _ in range(200):
        if get(base, "/progress")["running"] == 0:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the aborted request is still running")


def main():
    engine = sys.argv[sys.argv.index("--engine") + 1] if "--engine" in sys.argv else "serving"
    process, base = start(sys.argv[1], engine)
    try:
        client = openai.OpenAI(base_url=base + "/v1", api_key="secret", timeout=120)
        name = client.models.list().data[0].id
        chat(client, name)
        responses(client, name)
        if engine == "serving":
            strict_tools(client, anthropic.Anthropic(base_url=base, api_key="secret", timeout=120), name)
        messages(anthropic.Anthropic(base_url=base, api_key="secret", timeout=120), name)
        errors(base, name)
        assert "deepinfer_output_tokens_total" in get(base, "/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, process.returncode
    finally:
        if process.poll() is None:
            process.kill()
    print(f"openai {openai.__version__} and anthropic {anthropic.__version__} were served by the {engine} engine")


main()
