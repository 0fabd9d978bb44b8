"""What a persistent store saves and costs, with the program and the small model on a quiet machine.

usage: store_revisit.py PATH/deepinfer revisit [ROUNDS]   a long prompt cold, and again after a restart with a store
       store_revisit.py PATH/deepinfer slow [ROUNDS]      the same load without a store, with one, and with slow ones
"""
import concurrent.futures
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM, WHAT = sys.argv[1:3]
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "deepinfer-tiny")
WORDS = "bear forest honey river stone little house wind child red ball tree dog cat sun moon".split()


def words(n, seed):
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(n))


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--log-level", "off", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.process.stdout.readline().split()[-1].rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()

    def ask(self, messages, tokens):
        """Seconds, the answer, its usage."""
        body = {"model": "deepinfer-tiny", "messages": messages, "thinking": {"type": "disabled"}, "max_tokens": tokens, "temperature": 0}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=140)
        begun = time.monotonic()
        c.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = json.loads(c.getresponse().read())
        return time.monotonic() - begun, answer["choices"][0]["message"]["content"], answer["usage"]


def revisit():
    story = [{"role": "user", "content": words(11_300, 3)}]
    took = {"cold without a store": [], "cold with a store": [], "from memory": [], "after a restart, from the store": [],
            "after a restart, warmed up": []}
    for _ in range(ROUNDS):
        with Server() as s:
            took["cold without a store"].append(s.ask(story, 1))
        with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
            with Server("--store", d) as s:
                took["cold with a store"].append(s.ask(story, 1))
                took["from memory"].append(s.ask(story, 1))
            with Server("--store", d, "--store-warm-ms", "0") as s:
                took["after a restart, from the store"].append(s.ask(story, 1))
            with Server("--store", d) as s:
                took["after a restart, warmed up"].append(s.ask(story, 1))
    if len({x[1] for all_ in took.values() for x in all_}) != 1:
        sys.exit("the answers differ")
    cold = statistics.median(x[0] for x in took["cold without a store"])
    for name, all_ in took.items():
        seconds = statistics.median(x[0] for x in all_)
        details = all_[0][2]["prompt_tokens_details"]
        print(f"{name:<34} {seconds * 1e3:8.1f} ms  {cold / seconds:5.1f} x  of {all_[0][2]['prompt_tokens']} tokens {details}")


def load(*arguments):
    """Conversations of two turns each, four at a time, more of them than memory has room for."""
    talks = [[{"role": "user", "content": words(700, 100 + i)}] for i in range(16)]
    with Server("--kv-tokens", "12288", *arguments) as s:
        def turn(talk):
            _, answer, usage = s.ask(talk, 16)
            talk += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then"}]
            return answer, usage["prompt_tokens_details"].get("store_tokens", 0)

        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            first, second = list(pool.map(turn, talks)), list(pool.map(turn, talks))
        took = time.monotonic() - begun
    return took, [a for a, _ in first + second], sum(n for _, n in first + second)


def slow():
    ways = {"no store": None, "store": [], "store of 10 MB/s": ["--store-limit-mb-s", "10"], "store of 1 MB/s": ["--store-limit-mb-s", "1"]}
    took = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, more in ways.items():
            with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
                took[name].append(load(*(["--store", d, *more] if more is not None else [])))
    none = statistics.median(x[0] for x in took["no store"])
    for name, all_ in took.items():
        seconds = statistics.median(x[0] for x in all_)
        print(f"{name:<18} {seconds:6.2f} s  {seconds / none:5.3f} of no store's  {all_[0][2]} tokens from the store  {[round(x[0], 2) for x in all_]}")


{"revisit": revisit, "slow": slow}[WHAT]()
