"""Reads the table of sglang.bench_serving 0.5.6 and checks that its rows are filled and agree."""

import re

from serving import check

LATENCIES = ["Mean", "Median", "P99"]
ROWS = (
    [
        "Backend", "Traffic request rate", "Max request concurrency", "Successful requests",
        "Benchmark duration (s)", "Total input tokens", "Total input text tokens",
        "Total input vision tokens", "Total generated tokens",
        "Total generated tokens (retokenized)", "Request throughput (req/s)",
        "Input token throughput (tok/s)", "Output token throughput (tok/s)",
        "Peak output token throughput (tok/s)", "Peak concurrent requests",
        "Total token throughput (tok/s)", "Concurrency", "Mean E2E Latency (ms)",
        "Median E2E Latency (ms)",
    ]
    + [f"{kind} {name} (ms)" for name in ["TTFT", "TPOT", "ITL"] for kind in LATENCIES]
    + ["P95 ITL (ms)", "Max ITL (ms)"]
)
TITLE = " Serving Benchmark Result ".center(50, "=")


def read(output):
    """Rows by label, in order."""
    check(TITLE in output, f"there is no table:\n{output[-3000:]}")
    table = output.split(TITLE, 1)[1].split("=" * 50, 1)[0]
    rows = {}
    for line in table.splitlines():
        if found := re.match(r"(.{40}) (\S.*)$", line):
            rows[found[1].strip().removesuffix(":")] = found[2].strip()
    return rows


def check_rows(rows, *, backend, requests, inputs, outputs, concurrency, streams, most_again=1.2):
    """That all rows are there, filled, plausible and in agreement. Tokens that random weights choose
    become up to `most_again` times as many when their text is tokenized again."""
    missing = [label for label in ROWS if not rows.get(label)]
    check(not missing, f"rows without a value: {missing} in {rows}")
    n = {label: float(rows[label]) for label in ROWS if label not in ROWS[:3]}
    check(rows["Backend"] == backend, rows["Backend"])
    check(rows["Max request concurrency"] == str(concurrency), rows["Max request concurrency"])
    check(n["Successful requests"] == requests, f"{n['Successful requests']} of {requests} succeeded")
    check(n["Total input tokens"] == inputs, f"input tokens: {n['Total input tokens']}, {inputs} sent")
    check(n["Total generated tokens"] == outputs, f"{n['Total generated tokens']} of {outputs} tokens")
    again = n["Total generated tokens (retokenized)"]
    check(0.5 * outputs < again < most_again * outputs, f"retokenized: {again} of {outputs}")

    duration = n["Benchmark duration (s)"]
    # The table has hundredths: of a short run, half of one is much.
    rounding = 0.005 / duration

    def close(a, b, what, relative=0.03):
        check(abs(a - b) <= (relative + rounding) * abs(b) + 0.02, f"{what}: {a} is not {b}")

    close(n["Request throughput (req/s)"] * duration, requests, "requests")
    close(n["Input token throughput (tok/s)"] * duration, inputs, "input")
    close(n["Output token throughput (tok/s)"] * duration, outputs, "output")
    close(n["Total token throughput (tok/s)"] * duration, inputs + outputs, "total")
    close(n["Concurrency"] * duration, n["Mean E2E Latency (ms)"] * requests / 1e3, "concurrency")
    check(0 < n["Concurrency"] <= concurrency * 1.01, f"concurrency {n['Concurrency']}")
    check(1 <= n["Peak concurrent requests"] <= requests, "peak concurrent requests")
    check(0 < n["Peak output token throughput (tok/s)"] <= outputs, "peak throughput")
    check(0 < n["Mean TTFT (ms)"] <= n["Mean E2E Latency (ms)"] + 0.5, "first tokens come first")
    check(n["Median TTFT (ms)"] <= n["P99 TTFT (ms)"], "percentiles of TTFT")
    if streams:
        check(0 < n["Mean TPOT (ms)"] < n["Mean E2E Latency (ms)"], "TPOT")
        check(0 < n["Mean ITL (ms)"] < n["Mean E2E Latency (ms)"], "ITL")
        order = [n[f"{kind} ITL (ms)"] for kind in ["Median", "P95", "P99", "Max"]]
        check(order == sorted(order), f"percentiles of ITL: {order}")
    else:
        close(n["Mean TTFT (ms)"], n["Mean E2E Latency (ms)"], "a whole answer comes at once")
