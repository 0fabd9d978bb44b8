"""The README's examples of the server, as printed there (but for the port), against a server with the small model.

usage: readme_examples.py PATH/deepinfer
"""
import os
import re
import subprocess
import sys
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def block(text, start):
    """The indented block that begins with `start`."""
    lines, found = [], False
    for line in text.splitlines():
        if not found and line.startswith("    " + start):
            found = True
        if found:
            if not line.startswith("    "):
                break
            lines.append(line[4:])
    assert lines, f"the README has no example that begins with {start!r}"
    return "\n".join(lines)


def main():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    server = subprocess.Popen([sys.argv[1], "serve", "--listen", "127.0.0.1:0", "--log-level", "error"], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    try:
        address = server.stdout.readline().split()[-1]
        assert "http://127.0.0.1:8000" in readme
        here = readme.replace("http://127.0.0.1:8000", address)
        done = subprocess.run(["bash", "-c", block(here, "curl ")], capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0 and re.search(r'"content":"[^"]', done.stdout), (done.stdout, done.stderr)
        # The browser: the page and everything it names.
        with urllib.request.urlopen(address, timeout=30) as answer:
            page = answer.read().decode()
        for name in re.findall(r'(?:src|href)="([^":]+)"', page):
            with urllib.request.urlopen(f"{address}/{name}", timeout=30) as answer:
                assert answer.status == 200 and answer.read(), name
        done = subprocess.run([sys.executable, "-c", block(here, "from openai import")], capture_output=True, text=True, timeout=120, env=environment)
        if "No module named 'openai'" in done.stderr:
            print("SKIPPED: no openai in this Python environment; curl and page are fine")
            sys.exit(77)
        assert done.returncode == 0 and done.stdout.strip(), (done.stdout, done.stderr)
        chat = subprocess.run([sys.argv[1], "chat", "--url", address, "--max-tokens", "8", "--quiet"], input="hello\n/quit\n", capture_output=True, text=True, timeout=120, env=environment)
        assert chat.returncode == 0, chat.stderr
    finally:
        server.terminate()
        code = server.wait(90)
    assert code == 0, code
    print("curl, Python, page and chat work as the README prints them")


main()
