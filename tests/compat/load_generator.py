"""A published load generator (aiperf) completes a run against `deepinfer serve` with the small model, and both count the same.

usage: load_generator.py PATH/deepinfer   with DEEPINFER_LOAD_VENV naming the environment of tools/load_env.sh
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "models", "deepinfer-tiny")
REQUESTS, CONCURRENCY, OUTPUT = 40, 8, 24


def counter(text, name, label=""):
    return sum(float(m) for m in re.findall(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", text, re.M))


def main():
    generator = os.path.join(os.environ.get("DEEPINFER_LOAD_VENV", ""), "bin", "aiperf")
    if not os.path.exists(generator):
        print("SKIPPED: no aiperf; tools/load_env.sh installs it into build/venv-load (1.2 GB)")
        sys.exit(77)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    server = subprocess.Popen([sys.argv[1], "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--log-level", "error"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = server.stdout.readline().split()[-1]
        with tempfile.TemporaryDirectory() as d:
            # The generator counts tokens with the model's own tokenizer, from a folder as its library writes it. No hub is asked.
            os.symlink(os.path.join(os.path.abspath(MODEL), "tokenizer.json"), os.path.join(d, "tokenizer.json"))
            with open(os.path.join(d, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}, f)
            out = os.path.join(d, "out")
            done = subprocess.run([generator, "profile", "-m", "deepinfer-tiny", "--url", address, "--endpoint-type", "chat", "--streaming", "--tokenizer", d,
                                   "--concurrency", str(CONCURRENCY), "--request-count", str(REQUESTS), "--isl", "48", "--osl", str(OUTPUT), "--extra-inputs", "ignore_eos:true",
                                   "--ui", "none", "--no-gpu-telemetry", "--workers-max", "2", "--output-artifact-dir", out],
                                  capture_output=True, text=True, timeout=240, env=environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}, cwd=d)
            assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
            with open(os.path.join(out, "profile_export_aiperf.json"), encoding="utf-8") as f:
                report = json.load(f)
        with urllib.request.urlopen(address + "/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
    finally:
        server.terminate()
        code = server.wait(90)
    assert code == 0, code
    assert report["is_complete"] and not report["was_cancelled"] and not report.get("error_summary"), report.get("error_summary")
    assert report["request_count"]["avg"] == REQUESTS
    assert report["total_usage_completion_tokens"]["avg"] == REQUESTS * OUTPUT, report["total_usage_completion_tokens"]
    assert report["time_to_first_token"]["count"] == REQUESTS
    # The server counted what the generator saw.
    assert counter(metrics, "deepinfer_finished_total", 'finished_reason="length"') == REQUESTS
    assert counter(metrics, "deepinfer_output_tokens_total") == REQUESTS * OUTPUT
    assert counter(metrics, "deepinfer_time_to_first_token_seconds_count") == REQUESTS
    print(f"aiperf: {REQUESTS} requests, {CONCURRENCY} at a time, {REQUESTS * OUTPUT} tokens, {report['output_token_throughput']['avg']:.0f} tokens/s")


main()
