"""sglang.bench_serving with each of its back ends, streamed and whole."""

import json
import subprocess
import sys

import dataset
import serving
import table

REQUESTS, CONCURRENCY, INPUTS, OUTPUTS = 16, 4, 48, 24
KEYS = """backend dataset_name request_rate max_concurrency server_info duration completed
total_input_tokens total_output_tokens total_output_tokens_retokenized request_throughput
mean_e2e_latency_ms mean_ttft_ms p99_tpot_ms p95_itl_ms concurrency max_output_tokens_per_s
max_concurrent_requests""".split()


def bench(server, backend, streams):
    output = serving.WORK / "logs" / "sglang_bench.jsonl"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "sglang.bench_serving", "--base-url", server.url]
    command += dataset.options(
        backend, output, requests=REQUESTS, concurrency=CONCURRENCY, inputs=INPUTS, outputs=OUTPUTS
    )
    command += [] if streams else ["--disable-stream"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    serving.check(done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    table.check_rows(
        table.read(done.stdout), backend=backend, requests=REQUESTS, inputs=REQUESTS * INPUTS,
        outputs=REQUESTS * OUTPUTS, concurrency=CONCURRENCY, streams=streams,
    )
    record = json.loads(output.read_text())
    missing = [key for key in KEYS if record.get(key) in (None, "")]
    serving.check(not missing, f"no values under {missing}")


def cases():
    for backend in ["sglang", "sglang-oai", "sglang-oai-chat", "vllm"]:
        for streams in [True, False]:
            case = lambda server, b=backend, s=streams: bench(server, b, s)
            case.__name__ = f"{backend} {'streamed' if streams else 'whole'}"
            yield case


with serving.server(serving.artifact()) as server:
    serving.run_all(cases(), server)
