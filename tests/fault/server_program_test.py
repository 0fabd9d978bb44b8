"""`deepinfer serve` as a program, with the synthetic engine: command line and settings, exit codes, signals, TLS, Unix socket, ledger, log.

usage: server_program_test.py PATH/deepinfer
"""
import http.client
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from program import ASK, MODEL, PROGRAM, ROOT, Server, environment, run


class Program(unittest.TestCase):
    def test_command_line(self):
        for arguments, words in ((["--max-num-seqs", "4"], "--max-running"), (["--listn", "x:1"], "--listen"), (["--log-level", "loud"], "loud"), (["--max-running", "many"], "many"),
                                 (["--tls-key", "k"], "together"), (["--config", "/nowhere.toml"], "/nowhere.toml")):
            done = run(*arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(words, done.stderr, arguments)
        self.assertIn("DEEPINFER_PRT", run("--check-config", DEEPINFER_PRT="1").stderr)
        self.assertEqual(run("--check-config").returncode, 0)
        for arguments, value in ((['--protect-metrics'], True), (['--protect-metrics', 'false'], False), (['--protect-metrics=true'], True)):
            self.assertIs(json.loads(run('--print-config', *arguments).stdout)['config']['protect_metrics'], value, arguments)
        self.assertIn("--stream-buffer-bytes", run("--help").stdout)

    def test_settings_and_server_info_agree(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
            f.write("max_choices = 3\nlog_level = \"error\"\nworkers = 2\n")
            f.flush()
            arguments = ["--config", f.name, "--workers", "1", "--api-key", "secret"]
            printed = json.loads(run("--engine", "synthetic", "--model", MODEL, "--listen", "127.0.0.1:0", "--print-config", *arguments, DEEPINFER_MAX_CHOICES="5").stdout)
            with Server(*arguments, DEEPINFER_MAX_CHOICES="5") as s:
                status, info = s.ask("GET", "/server_info", headers={"authorization": "Bearer secret"})
        self.assertEqual(status, 200)
        self.assertEqual(info["config"], printed["config"])
        self.assertEqual((printed["config"]["max_choices"], printed["config"]["workers"], printed["config"]["log_level"], printed["config"]["api_key"]), (5, 1, "error", "(hidden)"))

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = run("--engine", "synthetic", "--model", MODEL, "--listen", f"127.0.0.1:{port}")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"port {port}", done.stderr)
        self.assertIn("in use", done.stderr)

    def test_a_model_that_is_not_there(self):
        done = run("--model", "/nowhere")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr)

    def test_one_signal_drains_and_two_hurry(self):
        for signals, whole in (([signal.SIGTERM], True), ([signal.SIGTERM, signal.SIGTERM], False), ([signal.SIGINT, signal.SIGTERM], False)):
            with Server("--synthetic-tokens-per-s", "20", "--drain-grace-s", "30", "--log-level", "error") as s:
                c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
                c.request("POST", "/v1/chat/completions", json.dumps(ASK | {"stream": True, "max_tokens": 40 if whole else 4000}))
                answer = c.getresponse()
                first = answer.read(20)
                s.process.send_signal(signals[0])
                time.sleep(0.2)
                self.assertEqual(s.ask("GET", "/readyz")[0], 503)
                self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK)[0], 503)
                code, _ = s.stop(*signals[1:])
                text = (first + answer.read()).decode()
                self.assertEqual(code, 0)
                self.assertEqual("[DONE]" in text, whole)
                self.assertEqual("shutting down" in text, not whole)

    def test_tls(self):
        with tempfile.TemporaryDirectory() as d:
            key, certificate = os.path.join(d, "k.pem"), os.path.join(d, "c.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
            with Server("--tls-certificate", certificate, "--tls-key", key, "--log-level", "error") as s:
                self.assertTrue(s.addresses[0].startswith("https://"))
                context = ssl.create_default_context(cafile=certificate)
                status, answer = s.ask("POST", "/v1/chat/completions", ASK, context)
                self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 10))
                status, text = s.ask("POST", "/v1/chat/completions", ASK | {"stream": True, "max_tokens": 60}, context)
                self.assertTrue(text.rstrip().endswith("[DONE]"))
                status, page = s.ask("GET", "/console.js", None, context)  # several records
                self.assertEqual((status, page), (200, open(os.path.join(ROOT, "web", "console.js"), encoding="utf-8").read()))
                # Plain bytes on the TLS port harm nobody.
                with socket.create_connection(("127.0.0.1", s.port)) as plain:
                    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    plain.settimeout(10)
                    plain.recv(100)
                self.assertEqual(s.ask("GET", "/health", None, context)[0], 200)
            self.assertIn(certificate, run("--engine", "synthetic", "--model", MODEL, "--listen", "127.0.0.1:0", "--tls-certificate", certificate + "x", "--tls-key", key).stderr)

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "s.sock")
            with Server("--unix-socket", path, "--log-level", "error", lines=2) as s:
                self.assertEqual(s.addresses[1], "unix:" + path)
                with socket.socket(socket.AF_UNIX) as c:
                    c.connect(path)
                    c.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    self.assertIn(b"200 OK", c.recv(1000))
                self.assertIn("in use", run("--engine", "synthetic", "--model", MODEL, "--listen", "127.0.0.1:0", "--unix-socket", path).stderr)
                self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
            self.assertFalse(os.path.exists(path))

    def test_ledger_and_log(self):
        with tempfile.TemporaryDirectory() as d:
            database, log = os.path.join(d, "usage.db"), os.path.join(d, "log")
            tokens = 0
            for round in range(2):  # the ledger outlives the server
                with Server("--database", database, "--log-format", "json", "--log-file", log) as s:
                    for n in (3, 7):
                        status, answer = s.ask("POST", "/v1/chat/completions", ASK | {"max_tokens": n})
                        self.assertEqual(status, 200)
                        tokens += answer["usage"]["completion_tokens"]
                    self.assertEqual(s.ask("POST", "/v1/chat/completions", {"model": 1})[0], 400)
                    self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
            lines = [json.loads(line) for line in open(log, encoding="utf-8")]
            events = [line["event"] for line in lines]
            self.assertEqual((events.count("request") - events.count("rejected"), events.count("rejected"), events.count("started"), events.count("stopped")), (4, 2, 2, 2))
            self.assertEqual(sum(line["output_tokens"] for line in lines if line["event"] == "request"), tokens)
            done = subprocess.run([PROGRAM, "usage", "--database", database, "--json"], capture_output=True, text=True, timeout=30, env=environment())
            total = json.loads(done.stdout)["totals"]
            self.assertEqual([(t["tenant"], t["requests"], t["output_tokens"]) for t in total], [("default", 4, tokens)])

    def test_traces_reach_a_collector(self):
        got = []

        class Collector(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                got.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        with Server("--otlp-endpoint", f"http://127.0.0.1:{collector.server_port}", "--log-level", "error") as s:
            self.assertEqual(s.ask("POST", "/v1/chat/completions", ASK, headers={"traceparent": f"00-{trace}-{parent}-01"})[0], 200)
            self.assertEqual(s.stop(signal.SIGTERM)[0], 0)
        collector.shutdown()
        self.assertEqual(got[0][0], "/v1/traces")
        spans = got[0][1]["resourceSpans"][0]["scopeSpans"][0]["spans"]
        whole = next(span for span in spans if span["name"] == "generate")
        self.assertEqual((whole["traceId"], whole["parentSpanId"]), (trace, parent))
        self.assertTrue(all(span["traceId"] == trace and int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in spans))
        self.assertIn("decode", {span["name"] for span in spans if span["parentSpanId"] == whole["spanId"]})

    def test_chat_against_a_server(self):
        with Server("--log-level", "error") as s:
            done = subprocess.run([PROGRAM, "chat", "--url", s.addresses[0], "--max-tokens", "12", "--quiet"], input="/system Be short.\nhello\n/help\n/quit\n",
                                  capture_output=True, text=True, timeout=60, env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("This answer comes from", done.stdout)
        refused = subprocess.run([PROGRAM, "chat", "--url", "http://127.0.0.1:1"], input="x\n", capture_output=True, text=True, timeout=30, env=environment())
        self.assertEqual(refused.returncode, 1)
        self.assertIn("cannot connect", refused.stderr)


unittest.main(argv=[sys.argv[0]], verbosity=1)
