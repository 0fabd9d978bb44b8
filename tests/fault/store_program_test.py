"""The persistent store with the programs: `deepinfer serve --store` over restarts, kills, damage, lost directories and foreign tenants,
and every `deepinfer store` command, on stores that are whole, damaged, empty, missing and no stores at all.

usage: store_program_test.py PATH/deepinfer
"""
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from program import MODEL, PROGRAM, Server, environment, eventually

STORY = "Once upon a time there was a small bear who lived in the forest and liked honey. " * 40
WINDOW = 128


def store(command, *arguments):
    done = subprocess.run([PROGRAM, "store", command, *arguments], capture_output=True, text=True, timeout=120, env=environment())
    return done.returncode, done.stdout, done.stderr


def store_json(command, *arguments):
    code, out, err = store(command, *arguments, "--json")
    return code, json.loads(out) if out else err


def serve(path, *arguments, **more):
    return Server("--store", path, "--log-level", "off", *arguments, engine="serving", **more)


def say(text):
    return [{"role": "user", "content": text}]


def ask(server, messages, tokens=40, **headers):
    """The answer, the prompt's tokens, those of them that were cached, those of these that came from the store."""
    body = {"model": "deepinfer-tiny", "messages": messages, "thinking": {"type": "disabled"}, "max_tokens": tokens, "temperature": 0}
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps(body), {k.replace("_", "-"): v for k, v in headers.items()})
    answer = json.loads(c.getresponse().read())
    c.close()
    usage = answer["usage"]
    details = usage["prompt_tokens_details"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], details["cached_tokens"], details.get("store_tokens", 0)


def figures(server):
    """Counters and gauges of the engine, by name."""
    out = {}
    for line in server.ask("GET", "/metrics")[1].splitlines():
        if line.startswith("deepinfer_engine_") and "=\"" in line:
            name, value = line.rsplit(" ", 1)
            out[name.split('="')[-1].split('"')[0]] = float(value)
    return out


def end(server, how=signal.SIGTERM):
    server.process.send_signal(how)
    return server.process.communicate(timeout=60)[1]


def cold(messages, **more):
    with Server("--log-level", "off", engine="serving") as s:
        return ask(s, messages, **more)[0]


def damage(path, every=50_000, kind=".seg"):
    for folder, _, files in os.walk(path):
        for name in files:
            if not name.endswith(kind):
                continue
            with open(os.path.join(folder, name), "r+b") as f:
                for at in range(50, os.path.getsize(f.name), every):
                    f.seek(at)
                    f.write(b"\x55\xaa\x55")


class Restart(unittest.TestCase):
    def test_the_same_conversation_computes_its_tail_only(self):
        with tempfile.TemporaryDirectory() as path:
            talk = say(STORY)
            want = cold(talk)
            with serve(path) as s:
                first, prompt, cached, _ = ask(s, talk)
                self.assertEqual((first, cached), (want, 0))
                again, _, cached, kept = ask(s, talk)
                self.assertEqual((again, kept), (want, 0))
                self.assertGreater(cached, 0)
                end(s)
            self.assertGreater(prompt, 700)
            talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "And then? " * 30}]
            want = cold(talk)
            for arguments in (["--store-warm-ms", "0"], ["--store-warm-ms", "0", "--store-write", "back"], []):
                # A store that the machine is too busy for is given up or not asked, which is right and not meant here.
                for _ in range(5):
                    with serve(path, *arguments) as s:
                        before = figures(s)
                        answer, longer, cached, kept = ask(s, talk, X_DeepInfer_Store_TTL="0")
                        after = figures(s)
                        end(s)
                    self.assertEqual(answer, want, arguments)
                    if not after["store_late_loads"] and not after["store_declined"]:
                        break
                # All but the new turn and what lies behind the last boundary of the old one.
                self.assertGreaterEqual(cached, prompt // WINDOW * WINDOW)
                if arguments:
                    self.assertEqual(kept, cached)
                    self.assertEqual(before["store_warm_blocks"], 0)
                    self.assertEqual((after["store_loads"], after["store_short_loads"]), (1, 0))
                    self.assertEqual(after["store_tokens"], kept)
                    self.assertGreaterEqual(after["store_fetched_bytes"], kept // WINDOW * 20_000)
                else:  # read into memory before the start
                    self.assertEqual((kept, after["store_loads"]), (0, 0))
                    self.assertGreater(before["store_warm_blocks"], 4)
                self.assertLessEqual(after["prefill_rows"] - before["prefill_rows"], longer - cached)

    def test_killed_at_any_moment(self):
        with tempfile.TemporaryDirectory() as path:
            talks = [say(STORY + str(i)) for i in range(3)]
            want = [cold(t) for t in talks]
            for round_ in range(6):
                with serve(path) as s:
                    got = []

                    def run():
                        try:
                            for t in talks:
                                got.append(ask(s, t)[0])
                        except (OSError, ValueError, http.client.HTTPException):
                            pass

                    asker = threading.Thread(target=run)
                    asker.start()
                    time.sleep(0.05 + 0.11 * round_)
                    end(s, signal.SIGKILL)
                    asker.join()
                    self.assertEqual(got, want[:len(got)])
                code, report = store_json("verify", path)
                self.assertEqual((code, report["sound"]), (0, True), report)
            with serve(path) as s:
                self.assertEqual([ask(s, t)[0] for t in talks], want)

    def test_damage_is_found_and_computed(self):
        with tempfile.TemporaryDirectory() as path:
            talk = say(STORY)
            want = cold(talk)
            with serve(path) as s:
                ask(s, talk)
                end(s)
            damage(path)
            code, report = store_json("verify", path)
            self.assertEqual((code, report["sound"]), (1, False))
            with serve(path, "--store-warm-ms", "0") as s:
                answer, _, cached, kept = ask(s, talk)
                self.assertEqual(answer, want)
                now = figures(s)
                self.assertGreater(now["store_integrity_failures"], 0)
                self.assertEqual((now["store_short_loads"], cached - kept), (1, 0))
                self.assertGreater(now["store_lost_tokens"], 0)
                end(s)
            self.assertEqual(store("scrub", path)[0], 0)
            self.assertEqual(store("verify", path)[0], 0)
            # Manifests too: what they said is read from the segments.
            damage(path, every=300, kind="manifest")
            self.assertEqual(store("verify", path)[0], 1)
            with serve(path) as s:
                self.assertEqual(ask(s, talk)[0], want)
                end(s)
            code, report = store_json("repair", path)
            self.assertEqual((code, report["busy"]), (0, 0))
            self.assertGreater(report["rewritten"], 0)
            self.assertEqual(store("verify", path)[0], 0)


class Whose(unittest.TestCase):
    def test_another_tenant_finds_nothing(self):
        with tempfile.TemporaryDirectory() as d:
            path, keys = os.path.join(d, "store"), os.path.join(d, "keys")
            with open(keys, "w", encoding="utf-8") as f:
                for key, tenant in (("one", "a"), ("two", "b"), ("three", "c")):
                    f.write(f"sha256:{hashlib.sha256(key.encode()).hexdigest()} tenant={tenant}\n")
            with serve(path, "--api-key-file", keys) as s:
                want = ask(s, say(STORY), authorization="Bearer one")[0]
                self.assertEqual(ask(s, say(STORY), authorization="Bearer two")[::2], (want, 0))
                end(s)
            with serve(path, "--api-key-file", keys, "--store-warm-ms", "0") as s:
                self.assertEqual(ask(s, say(STORY), authorization="Bearer three", X_DeepInfer_Store_TTL="0")[::2], (want, 0))
                self.assertGreater(ask(s, say(STORY), authorization="Bearer two")[3], 500)
                end(s)

    def test_other_weights_find_nothing(self):
        with tempfile.TemporaryDirectory() as d:
            path, other = os.path.join(d, "store"), os.path.join(d, "deepinfer-tiny")
            with serve(path) as s:
                want = ask(s, say(STORY))[0]
                end(s)
            # The same model with one byte of its tokenizer's file changed: another identity.
            shutil.copytree(MODEL, other)
            with open(os.path.join(other, "tokenizer.json"), "a", encoding="utf-8") as f:
                f.write(" ")
            with serve(path, model=other) as s:
                self.assertEqual(ask(s, say(STORY))[::2], (want, 0))
                end(s)

    def test_lives(self):
        with tempfile.TemporaryDirectory() as path:
            with serve(path, "--store-warm-ms", "0") as s:
                ask(s, say(STORY), X_DeepInfer_Store_TTL="0")
                self.assertEqual(figures(s)["store_blocks"], 0)
                ask(s, say("Another. " + STORY), X_DeepInfer_Store_TTL="3")
                end(s)
            code, out, _ = store("ls", path, "--json")
            # Windows may have a life of their own, by setting and by header.
            with tempfile.TemporaryDirectory() as apart:
                with serve(apart, "--store-window-chat-ttl-s", "1000") as s:
                    ask(s, say(STORY))
                    ask(s, say("Third. " + STORY), X_DeepInfer_Store_TTL="500", X_DeepInfer_Store_Window_TTL="50")
                    ask(s, say("Fourth. " + STORY), X_DeepInfer_Store_Window_TTL="0", X_DeepInfer_Store_TTL="400")
                    end(s)
                rows = [json.loads(line) for line in store("ls", apart, "--json")[1].splitlines()]
                near = lambda seconds: next(x for x in (50, 400, 500, 1000, 7 * 86400) if seconds <= x)
                self.assertEqual({(x["kind"], near(x["expires_in_s"])) for x in rows},
                                 {("block", 7 * 86400), ("window", 1000), ("block", 500), ("window", 50), ("block", 400)})
            lives = [json.loads(line)["expires_in_s"] for line in out.splitlines()]
            self.assertEqual(code, 0)
            self.assertGreater(len(lives), 4)
            self.assertLessEqual(max(lives), 3)
            time.sleep(4)
            with serve(path) as s:
                self.assertEqual(ask(s, say("Another. " + STORY))[2], 0)
                end(s)

    def test_quota(self):
        with tempfile.TemporaryDirectory() as path, serve(path, "--store-bytes", "1000000") as s:
            for i in range(12):
                ask(s, say(f"{i} " + STORY), tokens=2)
            self.assertTrue(eventually(lambda: figures(s)["store_own_bytes"] <= 900_000, 40))
            now = figures(s)
            self.assertGreater(now["store_evicted_objects"], 0)
            self.assertEqual(now["store_quota_bytes"], 1_000_000)


class Service(unittest.TestCase):
    def test_two_servers_share_both_ways(self):
        with tempfile.TemporaryDirectory() as path, serve(path) as a, serve(path) as b:
            for writer, reader, text in ((a, b, "One. "), (b, a, "Two. ")):
                want = ask(writer, say(text + STORY))[0]
                found = 0
                # It is told of the other's news within a tenth of a second, when it has seen that there is another.
                for _ in range(50):
                    time.sleep(0.2)
                    answer, _, cached, found = ask(reader, say(text + STORY), tokens=40, X_DeepInfer_Store_TTL="0")
                    self.assertEqual(answer, want)
                    if cached > 0:
                        break
                self.assertTrue(found > 0 or cached > 0)

    def test_a_lost_directory_does_not_stop_answers(self):
        with tempfile.TemporaryDirectory() as top:
            path = os.path.join(top, "store")
            with serve(path) as s:
                want = ask(s, say(STORY))[0]
                shutil.rmtree(path)
                self.assertEqual(ask(s, say(STORY))[0], want)
                self.assertEqual(ask(s, say("New. " + STORY))[1] > 700, True)
                self.assertTrue(eventually(lambda: "store" in str(s.ask("GET", "/health")[1].get("degraded"))))
                self.assertIn('deepinfer_degraded{model_name="deepinfer-tiny",what="store"} 1', s.ask("GET", "/metrics")[1])
                self.assertFalse(os.path.exists(path))
                end(s)

    def test_two_of_six_directories_lost_under_load(self):
        with tempfile.TemporaryDirectory() as top:
            dirs = [os.path.join(top, f"d{i}") for i in range(6)]
            more = [x for d in dirs[1:] for x in ("--store", d)] + ["--store-data-parts", "4", "--store-parity-parts", "2"]
            talks = [say(f"{i} " + STORY) for i in range(4)]
            want = [cold(t, tokens=8) for t in talks]
            with serve(dirs[0], *more) as s:
                for i, talk in enumerate(talks):
                    if i == 2:
                        shutil.rmtree(dirs[1])
                        shutil.rmtree(dirs[4])
                    self.assertEqual(ask(s, talk, tokens=8)[0], want[i])
                end(s)
            with serve(dirs[0], *more, "--store-warm-ms", "0") as s:
                for i in range(2):
                    answer, _, cached, kept = ask(s, talks[i], tokens=8)
                    self.assertEqual((answer, kept > 500, kept), (want[i], True, cached))
                end(s)
            code, report = store_json("rebuild", *dirs, "--data-parts", "4", "--parity-parts", "2")
            self.assertEqual((code, report["failed_parts"], report["lost_objects"]), (0, 0, 0), report)
            self.assertGreater(report["objects"], 8)
            # Two others may be lost now.
            for lost in (dirs[0], dirs[3]):
                shutil.rmtree(lost)
            with serve(dirs[0], *more, "--store-warm-ms", "0") as s:
                self.assertGreater(ask(s, talks[0], tokens=8)[3], 500)
                end(s)

    def test_metrics(self):
        with tempfile.TemporaryDirectory() as path, serve(path) as s:
            ask(s, say(STORY))
            now = figures(s)
        # Serving specification 7.11: match times, hit lengths and bytes, first and all ready, overlap, cost of what did not come, leases,
        # integrity, commits and aborts, drops, fill and age, computing avoided per stored byte and time.
        for name in ("store_match_p50_ns", "store_match_p99_ns", "store_matches_le_15_blocks", "store_fetched_bytes", "store_first_part_ns",
                     "store_fetch_ns", "store_stall_ns", "store_lost_tokens", "store_lease_expiries", "store_integrity_failures",
                     "store_commits", "store_aborts", "store_puts", "store_put_refusals", "store_own_bytes", "store_quota_bytes",
                     "store_gc_age_s", "store_tokens", "store_kept_megabyte_s"):
            self.assertIn(name, now)


class Commands(unittest.TestCase):
    def test_on_a_store(self):
        with tempfile.TemporaryDirectory() as top:
            a, b, file = (os.path.join(top, n) for n in ("a", "b", "carried"))
            code, info = store_json("serve-info", a)
            self.assertEqual((code, info["usable"]), (0, True))
            requests, answers = os.path.join(top, "in.jsonl"), os.path.join(top, "out.jsonl")
            with open(requests, "w", encoding="utf-8") as f:
                f.write(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
                                    "body": {"model": "deepinfer-tiny", "messages": say(STORY), "max_tokens": 8,
                                             "thinking": {"type": "disabled"}}}) + "\n")
            subprocess.run([PROGRAM, "batch", "--model", MODEL, "--store", a, "--quiet", requests, answers], check=True, timeout=120, env=environment())
            code, out, _ = store("ls", a, "--json")
            objects = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(code, 0)
            self.assertGreater(sum(o["kind"] == "block" for o in objects), 4)
            self.assertGreater(sum(o["kind"] == "window" for o in objects), 0)
            code, found = store_json("stat", a)
            self.assertEqual((code, found["objects"], found["damaged_entries"]), (0, len(objects), 0))
            self.assertEqual(store_json("export", a, file)[1]["objects"], len(objects))
            self.assertEqual(store("export", a, file)[0], 1)  # it exists
            self.assertEqual(store_json("import", b, file)[1]["objects"], len(objects))
            with serve(b, "--store-warm-ms", "0") as s:
                self.assertGreater(ask(s, say(STORY))[3], 500)
                end(s)
            self.assertEqual(store("repair", a)[0], 0)
            code, left = store_json("gc", a, "--bytes", "0", "--wait-s", "1")
            self.assertEqual((code, left["bytes"], left["evicted"]), (0, 0, len(objects)))
            self.assertEqual(store("verify", a)[0], 0)
            code, bench = store_json("bench", top, "--objects", "50", "--rounds", "1", "--pairs", "2", "--index", "20000")
            self.assertEqual(code, 0, bench)
            self.assertTrue({"read_share_of_raw", "match_us", "index_bytes_per_block", "put_mb_s"} <= bench.keys())
            self.assertTrue({"p50", "p99"} <= bench["match_us"].keys())
            self.assertEqual(sorted(os.listdir(top)), ["a", "b", "carried", "in.jsonl", "out.jsonl"])
            # A file that was cut short says so.
            with open(file, "r+b") as f:
                f.truncate(os.path.getsize(file) - 100)
            code, report = store_json("import", os.path.join(top, "c"), file)
            self.assertEqual((code, report["damaged"], report["objects"]), (1, 1, len(objects) - 1))

    def test_on_what_is_no_store(self):
        with tempfile.TemporaryDirectory() as top:
            nowhere, empty, foreign, file, other = (os.path.join(top, n) for n in ("nowhere", "empty", "foreign", "file", "other"))
            for folder in (empty, foreign, other):
                os.mkdir(folder)
            for name, text in ((os.path.join(foreign, "x"), "hi"), (file, "hi"), (os.path.join(other, "deepinfer-store"), "deepinfer store, format 9\n")):
                with open(name, "w", encoding="utf-8") as f:
                    f.write(text)
            words = {nowhere: "no store", empty: "no store", foreign: "no store", file: "Not a directory", other: 'it says "deepinfer store, format 9"'}
            for folder, word in words.items():
                for command in (["stat"], ["ls"], ["verify"], ["scrub"], ["repair"], ["gc", "--wait-s", "1"], ["export"]):
                    code, out, err = store(command[0], folder, *command[1:], *([os.path.join(top, "out")] if command == ["export"] else []))
                    self.assertEqual((code, out, err.count("\n")), (1, "", 1), (folder, command, err))
                    self.assertIn(word, err)
                # What makes a store where there is none leaves others' files alone, and makes none for what it cannot do.
                code, _, err = store("import", folder, file)
                self.assertEqual(code, 1)
                self.assertIn("no file of `deepinfer store export`", err)
                self.assertEqual(store("rebuild", folder)[0], 1)
            self.assertFalse(os.path.exists(nowhere))
            self.assertEqual((os.listdir(empty), os.listdir(foreign)), ([], ["x"]))
            for folder in (foreign, file, other):
                self.assertEqual(store("serve-info", folder)[0], 1)
                done = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--store", folder], capture_output=True, text=True,
                                      timeout=60, env=environment())
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(folder, done.stderr)
            self.assertEqual(store("bench", file)[0], 1)


if __name__ == "__main__":
    unittest.main()
