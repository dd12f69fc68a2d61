"""The page at `/`, used as a user uses it: page.py PRECAST CHROMIUM SCREENSHOT_DIR"""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

PRECAST, CHROMIUM, SHOTS = sys.argv[1], sys.argv[2], Path(sys.argv[3])
KEY = "a key"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(url, server):
    for _ in range(600):
        assert server.poll() is None, "the server has stopped"
        try:
            return urllib.request.urlopen(url, timeout=1).read()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


class Load:
    """More clients than may run at once, that ask without a pause until the block ends."""

    CLIENTS = 12

    def __init__(self, url):
        self.url, self.stop, self.answers, self.failures = url, threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.ask) for _ in range(self.CLIENTS)]

    def ask(self):
        # Longer than a few blocks, so that the prefix cache has it.
        body = {"text": "the plan of a bucket is replayed " * 12,
                "sampling_params": {"max_new_tokens": 64, "temperature": 0, "ignore_eos": True}}
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        while not self.stop.is_set():
            request = urllib.request.Request(self.url + "generate", json.dumps(body).encode(), headers)
            try:
                answer = json.loads(urllib.request.urlopen(request, timeout=120).read())
                assert answer["meta_info"]["completion_tokens"] == 64, answer
                self.answers += 1
            except Exception as error:
                self.failures.append(repr(error))
                return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures


def metrics(url):
    """Every metric: a list of labels and value, by name."""
    found = {}
    for line in urllib.request.urlopen(url + "metrics").read().decode().splitlines():
        match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
        if match:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found


def number(text):
    """What the page says, as a number: `12`, `3.4`, `5 %`, `1.2k`."""
    match = re.match(r"([\d.]+)(k|M|)(?: %)?$", text)
    assert match, text
    return float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]]


def seconds(text):
    match = re.match(r"(?:> )?([\d.]+) (ms|s)$", text)
    assert match, text
    return float(match[1]) / (1e3 if match[2] == "ms" else 1)


def close(got, want, by, what):
    assert abs(got - want) <= by, f"{what}: the page says {got}, the metrics {want}"


def live_view(page, url):
    """What the page shows while requests run and wait, and afterwards, beside the metrics."""
    shown = lambda name: number(page.locator(f"#{name}").inner_text())
    before, start = metrics(url), time.monotonic()
    total = lambda all, name: sum(value for _, value in all[name])
    with Load(url) as load:
        page.wait_for_function(
            """() => ['running', 'queued', 'output_rate', 'input_rate'].every(id =>
                Number(document.getElementById(id).textContent) > 0)
                && parseFloat(document.getElementById('kv').textContent) > 0""", timeout=60_000)
        now = metrics(url)
        most = total(now, "precast:max_running_requests")
        assert 0 < shown("running") <= most and 0 < shown("queued") < Load.CLIENTS, "running, queued"
        assert 0 < shown("kv") <= 100, "KV memory"
        # A rate is that of a second of the last ones; let some pass.
        page.wait_for_timeout(4_000)
        tokens = total(metrics(url), "sglang:generation_tokens_total") - total(before, "sglang:generation_tokens_total")
        mean = tokens / (time.monotonic() - start)
        top = number(page.locator("#rate_top").inner_text())
        assert mean / 3 < shown("output_rate") < mean * 3, f"{shown('output_rate')} tokens/s, in the mean {mean}"
        assert mean / 2 < top < mean * 4, f"at most {top} tokens/s, in the mean {mean}"
        page.screenshot(path=SHOTS / "page-busy.png", full_page=True)
    for name in ["running", "queued", "output_rate", "input_rate"]:
        expect(page.locator(f"#{name}")).to_have_text(re.compile(r"^0(\.0)?$"), timeout=10_000)
    assert shown("kv") == 0, "an idle engine holds no KV memory"

    page.get_by_label("Over which time").select_option("since start")
    now = metrics(url)
    hits = total(now, "sglang:cached_tokens_total") / total(now, "sglang:prompt_tokens_total")
    assert hits > 0.3, f"the load shares its prompt: {hits}"
    close(shown("hits"), 100 * hits, 1, "prefix hits in percent")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#latency tr").all()]
    assert [row[0] for row in rows] == ["first token", "next token", "whole answer"], rows
    for name, p50, p90, p99, count in rows:
        times = [seconds(text) for text in (p50, p90, p99)]
        assert 0 < times[0] <= times[1] <= times[2] < 60, f"{name}: {times}"
        assert number(count) >= load.answers, f"{name}: {count} of {load.answers}"
    ended = total(now, "sglang:e2e_request_latency_seconds_count")
    close(number(rows[2][4]), ended, ended / 100, "answers")
    next_token, whole = seconds(rows[1][1]), seconds(rows[2][1])
    assert 64 * next_token / 4 < whole < 64 * next_token * 20, f"64 tokens of {next_token} in {whole}"

    graph = lambda labels: (labels["phase"], labels["bucket"], labels["context"])
    padded = {graph(labels): value for labels, value in now["precast:graph_padded_rows_total"]}
    replays = [(graph(labels), value) for labels, value in now["precast:graph_replays_total"] if value]
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#buckets tr").all()]
    assert len(rows) == len(replays) > 3, f"{rows}, {replays}"
    for ((phase, bucket, context), count), row in zip(replays, rows):
        assert row[0] == f"{phase} {bucket}", row
        close(number(row[1]), count, count / 100, f"replays of {row[0]}")
        close(number(row[2]), 100 * padded[phase, bucket, context] / count / int(bucket), 1, f"padding of {row[0]}")
    assert any(number(row[2]) > 0 for row in rows), "nothing is padded"


def ask(page, text):
    answers = page.locator(".message.assistant").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".message.assistant").nth(answers)
    # The footer comes when the answer has ended.
    expect(answer.locator("footer")).to_have_text(re.compile(r"\d+ \+ \d+ tokens"), timeout=60_000)
    return answer


def use(page, url):
    problems, asked = [], []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))

    page.goto(url)
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#model")).to_contain_text("API key")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").blur()
    expect(page.locator("#model")).to_contain_text("tokens of context")
    # Without the key, /v1/models was refused once, as it must be.
    assert len(problems) == 1 and "401" in problems[0], problems
    problems.clear()

    page.get_by_label("Temperature").fill("0")
    answer = ask(page, "What is a bucket?")
    text = answer.locator("> span").inner_text()
    assert len(text) > 10, text
    footer = answer.locator("footer").inner_text()
    assert "first token" in footer and "tokens/s" in footer, footer
    ask(page, "And what is TTFT?")
    assert page.locator(".message.user").count() == 2

    expect(page.locator("#latency tr").first.locator("td").last).to_have_text("2", timeout=5_000)
    expect(page.locator("#buckets tr").first).to_be_visible()
    expect(page.locator("#running")).to_have_text("0")
    live_view(page, url)
    page.screenshot(path=SHOTS / "page.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=SHOTS / "page-dark.png", full_page=True)
    page.emulate_media(color_scheme="light")

    # A mistake is shown, loses nothing, and the next message goes through.
    page.get_by_label("Most tokens").fill("1000000")
    page.get_by_label("Message", exact=True).fill("too much")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".message.error")).to_contain_text("max_tokens")
    problems.clear()
    page.get_by_label("Most tokens").fill("4")
    answer = ask(page, "What is a bucket?")
    footer = answer.locator("footer").inner_text()
    assert re.search(r"\+ 4 tokens( · \d+ from cache)? · length$", footer), footer

    page.get_by_label("Mode").select_option("completion")
    ask(page, "A bucket is")

    page.get_by_role("button", name="New").click()
    assert page.locator(".message").count() == 0

    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    page.screenshot(path=SHOTS / "page-phone.png", full_page=True)

    assert not problems, problems
    assert all(u.startswith(url) for u in asked), asked


def main():
    SHOTS.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    server = subprocess.Popen([PRECAST, "run", "demo", "--port", str(port), "--api-key", KEY])
    try:
        wait_for(url + "health", server)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            use(browser.new_page(viewport={"width": 1280, "height": 860}), url)
            browser.close()
        server.terminate()
        assert server.wait(timeout=30) == 0, "the server did not end well"
    finally:
        server.kill()
    print(f"page: passed; screenshots in {SHOTS}")


if __name__ == "__main__":
    main()
