"""Records of runs to tables.

A record is a dict with `shape`, `format`, `work`, `engine`, `round`, either `tokens_per_second` or (for a
start) `seconds`, `rss_mib`, `foreign`, and `limits`, which the program `limits` printed just before and after, on average.
Precast's also have `bytes`, `product_operations` and `attention_operations`, the least that the work takes.
"""

import json
import statistics

from work import FORMATS, SHAPES, WORK, tokens

# Others had more of the processors than this: the run counts, and the table says so.
QUIET = 0.05
HEAD = (
    "| format | work | peer | peer's rate | read GB/s | of limit | MiB "
    "| Precast's rate | read GB/s | of limit | MiB | ratio |"
)
RULE = "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"


def parse(text):
    """Records from lines of JSON."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            for key in ("shape", "format", "work", "engine", "round", "limits"):
                record[key]
            rate(record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no record: {error!r}") from None
        records.append(record)
    return records


def rate(record):
    """Tokens a second, or starts a second: more is better."""
    if record["work"] == "start":
        return 1 / record["seconds"]
    return record["tokens_per_second"]


def between(before, after):
    """The means of what was probed before and after a run."""
    return {name: (before[name] + after[name]) / 2 for name in before}


# What multiplies numbers of a format, as the probes are named.
PROBES = {"bf16": ("f32", "bf16"), "int8": ("int16", "int8"), "int4": ("int16", "int8", "int4")}


def peak(limits, format):
    """Billions of operations a second that the machine does on numbers of this format. Where no products
    of integers were probed, those of floats stand for them."""
    known = {of: [value for name, value in limits.items() if name.startswith(PROBES[of])] for of in PROBES}
    return max(known[format] or known["bf16"])


def limit(record, least):
    """The rate that the machine allowed when `record` was made, `least` being a record with the bytes and
    operations of the same work. Attention computes with floats in every format."""
    limits = record["limits"]
    memory = least["bytes"] / limits["read"]
    products = least["product_operations"] / peak(limits, record["format"])
    arithmetic = products + least["attention_operations"] / peak(limits, "bf16")
    return tokens(record["work"]) * 1e9 / max(memory, arithmetic)


def spread(values):
    """Half of the range, as a share of the median."""
    return (max(values) - min(values)) / 2 / statistics.median(values)


def _cell(records, least):
    """Four columns about the runs of one engine."""
    rates = [rate(r) for r in records]
    middle = statistics.median(rates)
    if records[0]["work"] == "start":
        text = f"{1 / middle:.2f} s"
    else:
        text = f"{middle:.0f}" if middle >= 100 else f"{middle:.1f}"
    text += f" ±{spread(rates):.0%}"
    foreign = max(r["foreign"] for r in records)
    if foreign > QUIET:
        text += f" (others {foreign:.0%})"
    share = "–"
    if least is not None:
        share = f"{statistics.median(rate(r) / limit(r, least) for r in records):.2f}"
    read = statistics.median(r["limits"]["read"] for r in records)
    return f"{text} | {read:.0f} | {share} | {max(r['rss_mib'] for r in records):.0f}"


def ratios(peer, own):
    """Precast's rate over the peer's, of the rounds that have both."""
    rounds = {r["round"]: rate(r) for r in own}
    return [rounds[r["round"]] / rate(r) for r in peer if r["round"] in rounds]


def _rows(format, work, engines):
    """Rows of one piece of work in one format; `engines` has the records of each."""
    own = engines.get("precast", [])
    least = next((r for r in own if "bytes" in r), None)
    own_cell = _cell(own, least) if own else "– | – | – | –"
    peers = {name: records for name, records in engines.items() if name != "precast"}
    order = sorted(peers, key=lambda n: -statistics.median(rate(r) for r in peers[n]))
    for place, name in enumerate(order):
        pairs = ratios(peers[name], own)
        ratio = "–"
        if pairs:
            ratio = f"{statistics.median(pairs):.2f} ±{spread(pairs):.0%}"
            ratio = f"**{ratio}**" if place == 0 else ratio
        yield f"| {format} | {work} | {name} | {_cell(peers[name], least)} | {own_cell} | {ratio} |"
    if not peers:
        yield f"| {format} | {work} | – | – | – | – | – | {own_cell} | – |"


def table(records):
    """Markdown: for each shape the work in each format, each peer beside Precast, the strongest first and
    with its ratio in bold."""
    lines = []
    for shape in SHAPES:
        rows = []
        for format in FORMATS:
            for work in WORK:
                engines = {}
                for record in records:
                    if (record["shape"], record["format"], record["work"]) == (shape, format, work):
                        engines.setdefault(record["engine"], []).append(record)
                if engines:
                    rows += _rows(format, work, engines)
        if rows:
            lines += [f"### {shape}", "", HEAD, RULE, *rows, ""]
    return "\n".join(lines)
