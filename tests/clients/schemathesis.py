"""schemathesis: requests made from the server's own description, good and bad. See docs/clients.md."""

import os
import re
import subprocess
import sys

import serving
from serving import check

# How long it makes requests for.
SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "60"))
HERE = os.path.dirname(os.path.abspath(__file__))


def ask(server, seconds, *options):
    """Makes requests for so many seconds; fails when one is answered with a status of 500 or more, or not."""
    # It keeps what it found in the directory it runs in.
    folder = serving.WORK / "schemathesis"
    folder.mkdir(exist_ok=True)
    command = [
        os.path.join(os.path.dirname(sys.executable), "schemathesis"), "--config-file", f"{HERE}/schemathesis.toml",
        "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error", "--mode", "all",
        "--phases", "examples,fuzzing,stateful", "--max-time", str(seconds), "--request-timeout", "60",
        "--workers", "2", "--seed", "1", "--no-color", *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds + 300)
    print(done.stdout[-900:])
    check(done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}")
    made = re.search(r"(\d+) generated", done.stdout)
    check(made, "it says how many requests it made")
    return int(made[1])


def no_answer_is_the_servers_fault(_):
    path = serving.artifact("described", serving.DEMO, "--graph-bs", "1", "4", "8", "--max-context", "512")
    with serving.server(path, "--threads", 1, name="described") as server:
        # A server that somebody paused rightly lets the others wait, so that is asked for by itself.
        pause = "/pause_generation"
        check(ask(server, SECONDS, "--exclude-path", pause) > 10 * SECONDS, "it makes many requests")
        # What is shown as an example alone is more than half of that.
        check(server.metric("sglang:num_requests_total") >= 30, "requests reached the engine")
        check(ask(server, 5, "--include-path", pause) > 0, "it is asked to pause")
        server.post("/continue_generation", {})
        check(server.answers("/health_generate"), "the server is well afterwards")
        check("panicked" not in server.log.read_text(), "nothing panicked")
        server.terminate()
        check(server.process.wait(timeout=60) == 0, "the server ends well")


serving.run_all([no_answer_is_the_servers_fault], None)
