"""The page at `/`, used as a user uses it: page.py PRECAST CHROMIUM SCREENSHOT_DIR"""

import re
import socket
import subprocess
import sys
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
    assert "+ 4 tokens · length" in answer.locator("footer").inner_text()

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
