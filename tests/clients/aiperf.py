"""aiperf, chat and completions, streamed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import serving

REQUESTS, OUTPUTS = 12, 16


def profile(server, endpoint):
    out = serving.WORK / "logs" / f"aiperf-{endpoint}"
    shutil.rmtree(out, ignore_errors=True)
    # It finds a local tokenizer by the name of a directory in the current one, and by no path.
    home = serving.WORK / "aiperf"
    home.mkdir(exist_ok=True)
    shutil.copytree(serving.DEMO, home / "demo", dirs_exist_ok=True)
    command = [
        os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile", "--model", "demo",
        "--tokenizer", "demo", "--url", server.url, "--endpoint-type", endpoint, "--streaming",
        "--synthetic-input-tokens-mean", "32", "--output-tokens-mean", str(OUTPUTS),
        "--request-count", str(REQUESTS), "--concurrency", "4", "--ui", "none",
        "--extra-inputs", "ignore_eos:true", "--artifact-dir", str(out),
    ]
    # Told to stay offline, it looks into a cache and not into the directory.
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=400
    )
    serving.check(done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    files = [f for f in pathlib.Path(out).rglob("profile_export_aiperf.json")]
    serving.check(files, f"it wrote no results:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    results = json.loads(files[0].read_text())
    average = lambda name: results[name]["avg"]
    serving.check(average("request_count") == REQUESTS, f"{results['request_count']}")
    serving.check(not results.get("error_request_count", {}).get("avg"), "some requests failed")
    serving.check(0.5 * OUTPUTS <= average("output_sequence_length") <= 1.1 * OUTPUTS, "lengths")
    serving.check(0 < average("time_to_first_token") < average("request_latency"), "latencies")
    serving.check(average("inter_token_latency") > 0, "gaps")
    serving.check(average("output_token_throughput") > 0, "throughput")


def chat(server):
    profile(server, "chat")


def completions(server):
    profile(server, "completions")


with serving.server(serving.artifact()) as server:
    serving.run_all([chat, completions], server)
