"""Servers to test clients with, and checks that tell what they found."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

PRECAST = os.environ["PRECAST"]
WORK = pathlib.Path(os.environ["CLIENTS_DIR"])
DEMO = os.environ["DEMO"]


def artifact(name="demo", checkpoint=DEMO, *options):
    """Compiles `checkpoint` with `options`; the artifact."""
    out = WORK / "artifacts" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    options = options or ("--graph-bs", "1", "2", "4", "8", "16")
    command = [PRECAST, "compile", "--model", str(checkpoint), "--out", str(out), *options]
    subprocess.run(command, check=True, stderr=(WORK / "logs" / f"compile-{name}.log").open("w"))
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A program that listens on `port`, until the block ends."""

    def __init__(self, name, command, port, ready="/health", seconds=60):
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.log = WORK / "logs" / f"{name}.log"
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=self.log.open("w"), stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + seconds
        while not self.answers(ready):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise SystemExit(f"{name} does not answer:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def answers(self, path="/health"):
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def post(self, path, body, timeout=120):
        """The answer to a JSON body."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read())

    def metric(self, name):
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").splitlines()
        values = [l.rsplit(" ", 1)[1] for l in lines if l.startswith((name + " ", name + "{"))]
        check(values, f"/metrics has {name}")
        return sum(float(value) for value in values)

    def becomes_idle(self, seconds=10):
        """Waits until nothing runs; requests are counted when a step ends, which may be after their answers."""
        deadline = time.monotonic() + seconds
        while self.metric("sglang:num_running_reqs") > 0:
            check(time.monotonic() < deadline, "requests that nobody waits for still run")
            time.sleep(0.05)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


def server(path, *options, name="server"):
    """`precast serve` of an artifact."""
    port = free_port()
    return Process(name, [PRECAST, "serve", path, "--port", port, *options], port)


def check(holds, what):
    """Ends the test when something does not hold."""
    if not holds:
        raise AssertionError(what)


def run_all(cases, argument):
    """Runs test functions, prints a line for each, and fails when one does."""
    failures = 0
    for case in cases:
        start = time.monotonic()
        try:
            case(argument)
            print(f"ok      {case.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception as error:  # Each case is told about, however it fails.
            failures += 1
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            print(f"FAILED  {case.__name__}: {kind}{str(error)[:2000]}", flush=True)
    raise SystemExit(1 if failures else 0)
