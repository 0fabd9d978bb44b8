"""A published HTTP/2 client (httpx with h2) against `deepinfer serve`: many streams on one connection, errors, a large body.

usage: http2_clients.py PATH/deepinfer
"""
import asyncio
import json
import os
import subprocess
import sys
import urllib.request

try:
    import h2  # noqa: F401
    import httpx
except ImportError as e:
    print(f"SKIPPED: {e}; tools/test_env.sh installs httpx[http2]")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BODY = {"model": "deepinfer-tiny", "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}, "max_tokens": 40}


async def stream(client, **more):
    texts = []
    async with client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True} | more) as answer:
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2"), answer
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts.append(choice["delta"].get("content") or "")
            if line == "data: [DONE]":
                return "".join(texts)
    raise AssertionError("a stream without an end")


async def talk(address):
    async with httpx.AsyncClient(base_url=address, http1=False, http2=True, timeout=60) as client:
        texts = await asyncio.gather(*(stream(client) for _ in range(60)))
        assert len(set(texts)) == 1 and len(texts[0]) > 100, texts[:2]
        whole = await client.post("/v1/chat/completions", json=BODY)
        assert whole.json()["choices"][0]["message"]["content"] == texts[0]
        assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400
        assert (await client.get("/v1/nothing")).status_code == 404
        large = await client.post("/tokenize", json={"prompt": "many words " * 100_000})
        assert large.status_code == 200 and large.json()["count"] >= 100_000


def main():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    server = subprocess.Popen([sys.argv[1], "serve", "--engine", "synthetic", "--synthetic-tokens-per-s", "100", "--model", os.path.join(ROOT, "models", "deepinfer-tiny"),
                               "--listen", "127.0.0.1:0", "--log-level", "error"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = server.stdout.readline().split()[-1]
        asyncio.run(talk(address))
        with urllib.request.urlopen(address + "/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        assert 'deepinfer_http2_connections_total{model_name="deepinfer-tiny"} 1\n' in metrics
        assert 'deepinfer_http2_streams_total{model_name="deepinfer-tiny"} 64\n' in metrics, metrics[metrics.find("deepinfer_http2_streams"):][:300]
    finally:
        server.terminate()
        code = server.wait(90)
    assert code == 0, code
    print("60 streams of HTTP/2 at a time on one connection; errors; a large body")


main()
