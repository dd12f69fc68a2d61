"""sglang.bench_serving and `precast bench serving` on one server: the same totals, the same times.

The model is large enough that a step takes longer than the Python client needs for its tokens, or
the two would measure that client. Both send the same prompts, turn by turn, and the medians of
their runs are compared.
"""

import json
import resource
import statistics
import subprocess
import sys

import dataset
import model
import serving
import table

REQUESTS, CONCURRENCY, INPUTS, OUTPUTS, TURNS = 16, 4, 48, 32, 3
TOTALS = ["completed", "total_input_tokens", "total_output_tokens", "total_output_tokens_retokenized"]
# How far apart the medians may be, as a part of the larger. Runs of one client on a shared machine
# differ by as much.
TOLERANCES = {
    "output_throughput": 0.2, "request_throughput": 0.2, "mean_tpot_ms": 0.2,
    "median_itl_ms": 0.2, "mean_e2e_latency_ms": 0.2, "mean_ttft_ms": 0.35,
}


def run(command, server, backend, output):
    """A record, and the seconds of processor time that the client took."""
    output.unlink(missing_ok=True)
    options = dataset.options(
        backend, output, requests=REQUESTS, concurrency=CONCURRENCY, inputs=INPUTS, outputs=OUTPUTS,
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--base-url", server.url, "--served-model-name", "demo", *options],
        capture_output=True, text=True, timeout=300,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    serving.check(done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    table.check_rows(
        table.read(done.stdout), backend=backend, requests=REQUESTS, inputs=REQUESTS * INPUTS,
        outputs=REQUESTS * OUTPUTS, concurrency=CONCURRENCY, streams=True, most_again=3,
    )
    cost = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(output.read_text()), cost


def compare(server, backend):
    clients = {
        "python": [sys.executable, "-m", "sglang.bench_serving"],
        "native": [serving.PRECAST, "bench", "serving"],
    }
    runs = {name: [] for name in clients}
    for _ in range(TURNS):
        for name, command in clients.items():
            runs[name].append(run(command, server, backend, serving.WORK / "logs" / f"{name}.jsonl"))
    first = {name: results[0][0] for name, results in runs.items()}
    for key in TOTALS:
        serving.check(first["python"][key] == first["native"][key], f"{key}: {[f[key] for f in first.values()]}")
    missing = set(first["python"]) - set(first["native"])
    serving.check(not missing, f"keys that the native client does not write: {missing}")
    for key, tolerance in TOLERANCES.items():
        python, native = (
            statistics.median(record[key] for record, _ in runs[name]) for name in ("python", "native")
        )
        apart = abs(python - native) / max(python, native)
        print(f"        {key:22} python {python:9.2f}  native {native:9.2f}  {apart:5.1%} apart", flush=True)
        serving.check(apart <= tolerance, f"{key}: {python} and {native} are {apart:.0%} apart")
    costs = {name: statistics.median(cost for _, cost in results) for name, results in runs.items()}
    print(f"        processor time: python {costs['python']:.2f} s, native {costs['native']:.2f} s")
    serving.check(costs["native"] < costs["python"], "the native client costs less")


def cases():
    for backend in ["sglang", "sglang-oai", "sglang-oai-chat"]:
        case = lambda server, b=backend: compare(server, b)
        case.__name__ = backend
        yield case


checkpoint = model.random_checkpoint()
with serving.server(serving.artifact("random", checkpoint, "--graph-bs", "1", "4", "--max-context", "2048")) as server:
    serving.run_all(cases(), server)
