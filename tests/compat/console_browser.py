"""The console in a real browser: headless Chromium through chromedriver's own protocol, nothing else needed.

usage: console_browser.py PATH/deepinfer [--screenshots DIR]

Sends a message and sees the answer stream, stops one, opens the engine's view and the inspector, switches the theme, and looks at a
phone's width: nothing may be wider than the screen, no console error, no request to another host.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def call(base, method, path, body=None):
    request = urllib.request.Request(base + path, method=method, data=None if body is None else json.dumps(body).encode(), headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as e:
        raise AssertionError(f"{method} {path}: {e.read().decode()[:500]}") from None


class Browser:
    def __init__(self, driver, port):
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([driver, f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                call(self.base, "GET", "/status")
                break
            except OSError:
                time.sleep(0.1)
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"]}
        session = call(self.base, "POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + session["sessionId"]

    def do(self, method, path, body=None):
        return call(self.base, method, self.session + path, body)

    def js(self, script, *arguments):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            if self.js("return " + script):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; page says: {self.js('return document.body.innerText')[:800]}")

    def find(self, css):
        return list(self.do("POST", "/element", {"using": "css selector", "value": css}).values())[0]

    def click(self, css):
        self.do("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self.do("POST", f"/element/{self.find(css)}/value", {"text": text})

    def size(self, width, height):
        self.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}})

    def picture(self, folder, name):
        if folder:
            with open(os.path.join(folder, name + ".png"), "wb") as f:
                f.write(base64.b64decode(self.do("GET", "/screenshot")))

    def close(self):
        try:
            self.do("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)


def fits(browser):
    wide = browser.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{wide} pixels wider than the screen"


def talk(b, folder):
    b.until("document.getElementById('model').textContent != ''")
    b.until("document.getElementById('health').textContent == 'idle' || document.getElementById('health').textContent == 'ok'")
    b.type("#text", "Hello there")
    b.click("#send")
    b.until("document.querySelectorAll('.turn.assistant .text')[0]?.textContent.length > 20")
    b.until("!document.getElementById('send').disabled", 60)
    assert "tokens" in b.js("return document.querySelector('.turn.assistant .meta').textContent")
    b.picture(folder, "console-chat-light")
    # One that would go on for minutes is stopped.
    b.js("document.getElementById('max_tokens').value = 50000")
    b.type("#text", "Again\ue007")
    b.until("document.querySelectorAll('.turn.assistant').length == 2 && document.querySelectorAll('.turn.assistant .text')[1].textContent.length > 5")
    b.click("#stop")
    b.until("document.querySelectorAll('.turn.assistant .meta')[1].textContent.includes('stopped')")
    b.until("!document.getElementById('send').disabled")
    assert b.js("return messages.length") == 4


def views(b, folder):
    b.click("#tab-live")
    assert b.js("return [...document.querySelectorAll('section')].filter(s => s.offsetParent !== null).map(s => s.id).join()") == "live"
    b.until("document.querySelectorAll('.tile').length > 10")
    b.until("document.querySelectorAll('#c-rate path').length == 1", 10)
    for chart, lines in (("latency", 2), ("load", 2), ("cache", 3), ("drafts", 1), ("step", 4)):
        b.until(f"document.querySelectorAll('#c-{chart} path').length == {lines}", 10)
    b.until("past.first.some(v => v > 0) && past.between.some(v => v > 0) && past.rate.some(v => v > 0)")
    time.sleep(3)
    b.picture(folder, "console-engine-light")
    b.click("#tab-inspect")
    b.click("#render")
    b.until("document.querySelectorAll('#spans .control').length > 2")
    assert "Hello there" in b.js("return document.getElementById('spans').textContent")
    b.until("[...document.querySelectorAll('#timeline div')].map(e => e.className).join() == 'queue,prefill,decode'")
    assert "ms" in b.js("return document.querySelector('#timeline .decode').textContent")
    assert b.js("return document.querySelectorAll('#recent tr').length") == 3  # the head, the answer and the one that was stopped
    assert "client_left" in b.js("return document.getElementById('recent').textContent")
    b.type("#tab-inspect", "\ue012")  # the left arrow walks the tabs
    assert b.js("return document.activeElement.id + document.getElementById('live').hidden") == "tab-livefalse"
    b.type("#tab-live", "\ue014")
    assert b.js("return document.getElementById('inspect').hidden") is False
    b.click("#theme")
    dark = b.js("return getComputedStyle(document.body).backgroundColor")
    b.picture(folder, "console-inspect-dark")
    b.click("#theme")
    assert dark != b.js("return getComputedStyle(document.body).backgroundColor")


def narrow(b, folder):
    b.size(360, 740)
    for tab in ("chat", "live", "inspect"):
        b.click("#tab-" + tab)
        fits(b)
    b.click("#theme")
    b.click("#tab-chat")
    b.picture(folder, "console-phone-dark")
    fits(b)


def main():
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        print("SKIPPED: Debian's packages chromium and chromium-driver are not installed")
        sys.exit(77)
    folder = sys.argv[sys.argv.index("--screenshots") + 1] if "--screenshots" in sys.argv else None
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    server = subprocess.Popen([sys.argv[1], "serve", "--listen", "127.0.0.1:0", "--engine", "synthetic", "--model", os.path.join(ROOT, "models", "deepinfer-tiny"), "--log-level", "error"],
                              stdout=subprocess.PIPE, text=True, env=environment)
    browser = None
    try:
        address = server.stdout.readline().split()[-1]
        browser = Browser(driver, 20000 + os.getpid() % 20000)
        browser.size(1200, 900)
        browser.do("POST", "/url", {"url": address})
        talk(browser, folder)
        views(browser, folder)
        narrow(browser, folder)
        problems = [line["message"] for line in browser.do("POST", "/se/log", {"type": "browser"}) if line["level"] == "SEVERE"]
        assert not problems, problems
        others = browser.js("return performance.getEntriesByType('resource').map(r => new URL(r.name).host).filter(h => h != location.host)")
        assert not others, others
    finally:
        if browser:
            browser.close()
        server.terminate()
        server.wait(70)
    print("the console works in Chromium: chat, stop, engine, inspector, both themes, 360 pixels")


main()
