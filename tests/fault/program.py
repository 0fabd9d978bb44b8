"""What tests of `deepinfer serve` as a program share: starting it, asking it, ending it. The program's path is the first argument."""
import http.client
import json
import os
import subprocess
import sys
import time

PROGRAM = sys.argv.pop(1)
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "models", "deepinfer-tiny")
ASK = {"model": "deepinfer-tiny", "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}, "max_tokens": 10}


def environment(**more):
    return {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")} | more


def run(*arguments, **more):
    return subprocess.run([PROGRAM, "serve", *arguments], capture_output=True, text=True, timeout=60, env=environment(**more))


class Server:
    def __init__(self, *arguments, lines=1, engine="synthetic", model=MODEL, before=None, **more):
        self.process = subprocess.Popen([PROGRAM, "serve", "--engine", engine, "--model", model, "--listen", "127.0.0.1:0", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more), preexec_fn=before)
        self.addresses = [self.process.stdout.readline().split()[-1] for _ in range(lines)]
        self.port = int(self.addresses[0].rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ask(self, method, path, body=None, context=None, headers=None):
        kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
        c = kind("127.0.0.1", self.port, timeout=30, **({"context": context} if context else {}))
        c.request(method, path, json.dumps(body) if body is not None else None, headers or {})
        answer = c.getresponse()
        data = answer.read()
        c.close()
        return answer.status, json.loads(data) if "json" in answer.headers.get("content-type", "") else data.decode()

    def stop(self, *signals):
        for s in signals:
            self.process.send_signal(s)
            time.sleep(0.3)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


def usage(database):
    """The ledger's totals, by tenant."""
    done = subprocess.run([PROGRAM, "usage", "--database", database, "--json"], capture_output=True, text=True, timeout=30, env=environment())
    return {t["tenant"]: t for t in json.loads(done.stdout)["totals"]}


def eventually(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
