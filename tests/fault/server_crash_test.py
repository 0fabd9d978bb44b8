"""`deepinfer serve` when its process is killed, its disk is full, its settings change, its clients speak HTTP/2 or leave.

usage: server_crash_test.py PATH/deepinfer
"""
import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import unittest

from program import ASK, Server, eventually, usage


def stream(port, **more):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    c.request("POST", "/v1/chat/completions", json.dumps(ASK | {"stream": True} | more))
    return c, c.getresponse()


def deltas(text):
    """Texts of the events that arrived whole."""
    out = []
    for line in text.split("\n\n")[:-1]:
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                out.append(choice.get("delta", {}).get("content") or "")
    return out


def tokens_of(port, text):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    c.request("POST", "/tokenize", json.dumps({"prompt": text}))
    return json.loads(c.getresponse().read())["count"]


class Ledger(unittest.TestCase):
    def test_a_server_that_is_killed_in_the_middle_of_a_stream(self):
        with tempfile.TemporaryDirectory() as d:
            database, path = os.path.join(d, "usage.db"), os.path.join(d, "s.sock")
            arguments = ("--database", database, "--unix-socket", path, "--log-level", "off", "--synthetic-tokens-per-s", "100")
            with Server(*arguments, lines=2) as s:
                self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK | {"max_tokens": 5})[0], 200)
                c, answer = stream(s.port, max_tokens=4000)
                got = b""
                end = time.monotonic() + 3.2
                while time.monotonic() < end:
                    got += answer.read1()
                s.process.send_signal(signal.SIGKILL)
                s.process.wait()
                try:
                    while data := answer.read1():
                        got += data
                except (http.client.HTTPException, OSError):
                    pass
            # While nobody has started again the running row is there as it was last written.
            before = usage(database)["default"]
            with Server(*arguments, lines=2) as s:  # the socket's file and the database's log are left over
                delivered = tokens_of(s.port, "".join(deltas(got.decode())))
                after = usage(database)["default"]
                self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK | {"max_tokens": 7})[0], 200)
                self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
            self.assertEqual(before, after)
            self.assertEqual(after["requests"], 2)
            # At most the last second (and the moment of a commit, on a busy machine) is missing, never one too many.
            self.assertLessEqual(after["output_tokens"] - 5, delivered)
            self.assertGreaterEqual(after["output_tokens"] - 5, delivered - 200)
            self.assertGreater(delivered, 250)
            last = usage(database)["default"]
            self.assertEqual((last["requests"], last["output_tokens"] - after["output_tokens"]), (3, 7))
            reasons = [r[0] for r in sqlite3.connect(database).execute("SELECT reason FROM usage ORDER BY time_ns")]
            self.assertEqual(sorted(reasons), ["crashed", "length", "length"])

    def test_cancelled_retried_and_left_requests_count_what_was_delivered(self):
        with tempfile.TemporaryDirectory() as d:
            database = os.path.join(d, "usage.db")
            with Server("--database", database, "--log-level", "off", "--synthetic-tokens-per-s", "50") as s:
                total = 0
                # Cancelled through the API: the stream's own usage is what the ledger has.
                c, answer = stream(s.port, max_tokens=4000, stream_options={"include_usage": True})
                first = answer.read1().decode()
                while '"id"' not in first:
                    first += answer.read1().decode()
                name = re.search(r'"id":"([^"]+)"', first).group(1)
                time.sleep(0.5)
                self.assertEqual(s.ask("POST", "/abort_request", {"rid": name})[0], 200)
                text = first + answer.read().decode()
                total += json.loads(re.findall(r'data: (.*"usage":\{.*)', text)[-1])["usage"]["completion_tokens"]
                # A retry with the same request id is a request of its own.
                for _ in range(3):
                    status, answer = s.ask("POST", "/v1/chat/completions", ASK | {"max_tokens": 6}, headers={"x-request-id": "same"})
                    total += answer["usage"]["completion_tokens"]
                # Refused before any work: no row.
                self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK | {"max_tokens": 10**9})[0], 400)
                self.assertTrue(eventually(lambda: usage(database).get("default", {}).get("output_tokens") == total), (usage(database), total))
                self.assertEqual(usage(database)["default"]["requests"], 4)
                # Left: what the server had handed over, which is at least what arrived.
                c, answer = stream(s.port, max_tokens=4000)
                got = answer.read1().decode()
                while len(deltas(got)) < 30:
                    got += answer.read1().decode()
                arrived = tokens_of(s.port, "".join(deltas(got)))
                answer.close()
                c.close()
                self.assertTrue(eventually(lambda: s.ask("GET", "/load")[1]["server_load"] == 0))
                self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
            left = usage(database)["default"]["output_tokens"] - total
            self.assertGreaterEqual(left, arrived)
            self.assertLess(left, arrived + 50)

    def test_a_disk_that_is_full_degrades_and_recovers(self):
        limit = 96 << 10

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        with tempfile.TemporaryDirectory() as d:
            database, log = os.path.join(d, "usage.db"), os.path.join(d, "log")
            with Server("--database", database, "--log-file", log, "--log-format", "json", "--synthetic-tokens-per-s", "0", before=small_files) as s:
                tokens, rows = 0, 0

                def degraded():
                    return " ".join(s.ask("GET", "/health")[1].get("degraded", []))

                while rows < 3000 and not ("database" in degraded() and "log" in degraded()):
                    for _ in range(25):
                        status, answer = s.ask("POST", "/v1/responses", {"model": "deepinfer-tiny", "input": "x" * 2000, "max_output_tokens": 20})
                        self.assertEqual(status, 200)
                        tokens += answer["usage"]["output_tokens"]
                        rows += 1
                self.assertIn("database", degraded())
                self.assertIn("log", degraded())
                self.assertEqual(s.ask("GET", "/readyz")[0], 200)  # answers go on
                self.assertEqual(s.ask("GET", "/v1/responses/" + answer["id"])[0], 200)  # not yet in the file, but known
                self.assertIn("deepinfer_degraded", s.ask("GET", "/metrics")[1])
                resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                self.assertTrue(eventually(lambda: s.ask("POST", "/v1/nothing")[0] == 404 and degraded() == "", 15), degraded())
                self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
            total = usage(database)["default"]
            self.assertEqual((total["requests"], total["output_tokens"]), (rows, tokens))


class Settings(unittest.TestCase):
    def test_live_settings_and_keys_change_and_others_do_not(self):
        with tempfile.TemporaryDirectory() as d:
            file, keys, log = (os.path.join(d, n) for n in ("s.toml", "keys", "log"))

            def write(path, text):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)

            def digest(key):
                return "sha256:" + hashlib.sha256(key.encode()).hexdigest()

            head = f'api_key_file = "{keys}"\nlog_file = "{log}"\n'
            write(keys, digest("one") + " tenant=a\n")
            write(file, head + "max_output_tokens = 50\n")
            with Server("--config", file, "--log-format", "json", "--max-choices", "4") as s:
                def ask(key, **more):
                    return s.ask("POST", "/v1/chat/completions", ASK | more, headers={"authorization": "Bearer " + key})

                def config():
                    return s.ask("GET", "/server_info", headers={"authorization": "Bearer one"})[1]["config"]

                self.assertEqual(ask("one", max_tokens=60)[0], 400)
                self.assertEqual(ask("two")[0], 401)
                # By the endpoint.
                write(file, head + "max_output_tokens = 100\nmax_choices = 2\n")
                write(keys, digest("one") + " tenant=a\n" + digest("two") + " tenant=b requests_per_minute=1\n")
                self.assertEqual(s.ask("POST", "/reload_config")[0], 401)
                status, answer = s.ask("POST", "/reload_config", headers={"authorization": "Bearer one"})
                self.assertEqual((status, answer), (200, {"changed": ["max_output_tokens"]}))
                self.assertEqual(config()["max_choices"], 4)  # the flag still beats the file
                self.assertEqual(ask("one", max_tokens=60)[0], 200)
                self.assertEqual([ask("two")[0] for _ in range(2)], [200, 429])
                # What cannot change, what is not known, what is out of range: named, and nothing changes.
                for text, words in (("max_running = 3\n", "max_running cannot change"), ("max_outputtokens = 1\n", "did you mean"), ("stall_s = 0.0\n", "times must be"),
                                    ("max_output_tokens = -1\n", "not negative"), ("stall_s = [", "s.toml:")):
                    write(file, head + "drain_grace_s = 5.0\n" + text)
                    status, answer = s.ask("POST", "/reload_config", headers={"authorization": "Bearer one"})
                    self.assertEqual(status, 400, text)
                    self.assertIn(words, answer["error"]["message"])
                    self.assertEqual((config()["drain_grace_s"], config()["max_output_tokens"]), (60.0, 100))
                # By the signal; the log's file is opened again by its name.
                os.rename(log, log + ".1")
                write(keys, digest("two") + " tenant=b\n" + digest("one") + " tenant=a\n")
                write(file, head + "drain_grace_s = 5.0\nmax_output_tokens = 100\n")
                s.process.send_signal(signal.SIGHUP)
                self.assertTrue(eventually(lambda: config()["drain_grace_s"] == 5.0))
                self.assertTrue(eventually(lambda: os.path.exists(log) and "settings_read" in open(log, encoding="utf-8").read()))
                self.assertEqual([ask("two")[0] for _ in range(3)], [200, 200, 200])
                write(keys, "nonsense\n")
                s.process.send_signal(signal.SIGHUP)
                self.assertTrue(eventually(lambda: "settings_refused" in open(log, encoding="utf-8").read()))
                self.assertEqual(ask("two")[0], 200)
                code, errors = s.stop(signal.SIGTERM)
                self.assertEqual(code, 0)
                self.assertIn("at most 5 s", errors)
                self.assertIn("settings not taken", errors)


@unittest.skipUnless(shutil.which("curl") and "HTTP2" in subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout, "no curl with HTTP/2")
class Http2(unittest.TestCase):
    def curl(self, url, *arguments):
        done = subprocess.run(["curl", "-sS", "-N", "--max-time", "30", "-w", "\n%{http_version} %{http_code}", url, *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        body, _, end = done.stdout.rpartition("\n")
        return body, end

    def test_without_tls(self):
        with Server("--log-level", "error", "--stream-gap-ms", "0") as s:  # an event per token, also when a step is late
            url = s.addresses[0]
            body, end = self.curl(url + "/v1/chat/completions", "--http2-prior-knowledge", "-d", json.dumps(ASK), "-H", "x-request-id: mine")
            self.assertEqual((end, json.loads(body)["usage"]["completion_tokens"]), ("2 200", 10))
            body, end = self.curl(url + "/v1/chat/completions", "--http2-prior-knowledge", "-d", json.dumps(ASK | {"stream": True, "max_tokens": 50}))
            plain, _ = self.curl(url + "/v1/chat/completions", "--http1.1", "-d", json.dumps(ASK | {"stream": True, "max_tokens": 50}))
            self.assertEqual(end, "2 200")
            self.assertTrue(body.rstrip().endswith("data: [DONE]"))
            self.assertEqual(deltas(body), deltas(plain))
            self.assertEqual(self.curl(url + "/v1/nothing", "--http2-prior-knowledge")[1], "2 404")
            self.assertEqual(self.curl(url + "/livez", "--http2")[1], "1.1 200")  # an upgrade is not needed, nor taken
            page, end = self.curl(url + "/", "--http2-prior-knowledge", "--compressed")
            self.assertEqual(end, "2 200")
            self.assertIn("console.js", page)
            self.assertIn('deepinfer_http2_streams_total{model_name="deepinfer-tiny"} 4', s.ask("GET", "/metrics")[1])
            # A client that leaves ends its request.
            p = subprocess.Popen(["curl", "-sN", "--http2-prior-knowledge", url + "/v1/chat/completions", "-d", json.dumps(ASK | {"stream": True, "max_tokens": 4000})], stdout=subprocess.PIPE)
            p.stdout.read(10)
            p.kill()
            p.communicate()
            self.assertTrue(eventually(lambda: s.ask("GET", "/load")[1]["server_load"] == 0))
            self.assertEqual(s.stop(signal.SIGTERM)[0], 0)

    def test_chosen_by_tls(self):
        with tempfile.TemporaryDirectory() as d:
            key, certificate = os.path.join(d, "k.pem"), os.path.join(d, "c.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
            tls = ("--tls-certificate", certificate, "--tls-key", key, "--log-level", "error")
            with Server(*tls) as s:
                url = s.addresses[0]
                body, end = self.curl(url + "/v1/chat/completions", "--cacert", certificate, "-d", json.dumps(ASK | {"stream": True, "max_tokens": 200}))
                self.assertEqual(end, "2 200")
                self.assertTrue(body.rstrip().endswith("data: [DONE]"))
                self.assertEqual(self.curl(url + "/console.js", "--cacert", certificate)[1], "2 200")
                self.assertEqual(self.curl(url + "/livez", "--cacert", certificate, "--http1.1")[1], "1.1 200")
            with Server(*tls, "--http2", "false") as s:
                self.assertEqual(self.curl(s.addresses[0] + "/livez", "--cacert", certificate)[1], "1.1 200")


class TheModel(unittest.TestCase):
    def test_clients_that_leave_give_back_blocks_and_threads(self):
        with Server("--log-level", "error", "--max-running", "16", "--kv-tokens", "16384", engine="serving") as s:
            pid = s.process.pid

            def footprint():
                state = s.ask("GET", "/console/state")[1]
                gauges = state["gauges"]
                time.sleep(0.05)  # for the server to close what has just asked
                return {"running": gauges["running"], "waiting": gauges["waiting"], "used": gauges["blocks_used"], "in_flight": state["in_flight"],
                        "threads": len(os.listdir(f"/proc/{pid}/task")), "files": len(os.listdir(f"/proc/{pid}/fd"))}

            self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK)[0], 200)
            self.assertTrue(eventually(lambda: footprint()["used"] == 0 and footprint()["in_flight"] == 0))
            before = min((footprint() for _ in range(5)), key=lambda f: f["files"])
            clients = []
            for i in range(60):
                c = socket.create_connection(("127.0.0.1", s.port))
                body = json.dumps(ASK | {"stream": i % 3 != 0, "max_tokens": 1500, "ignore_eos": True, "messages": [{"role": "user", "content": f"Story {i}: " + "tell me more. " * (i % 7)}]})
                c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                clients.append(c)
            self.assertTrue(eventually(lambda: footprint()["running"] == 16 and footprint()["waiting"] > 20))
            for i, c in enumerate(clients):
                if i % 2:
                    c.shutdown(socket.SHUT_WR)
                else:
                    c.close()
            self.assertTrue(eventually(lambda: footprint()["running"] == footprint()["waiting"] == footprint()["used"] == 0), (footprint(), before))
            for c in clients:
                c.close()
            self.assertTrue(eventually(lambda: footprint() == before), (footprint(), before))
            metrics = s.ask("GET", "/metrics")[1]
            for name in ("verified_total", "accepted_total", "predicted_total"):
                self.assertIn(f'deepinfer_speculation_{name}{{model_name="deepinfer-tiny",position="0"}}', metrics)
            self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK)[0], 200)
            self.assertEqual(s.stop(signal.SIGTERM)[0], 0)


unittest.main(verbosity=1)
