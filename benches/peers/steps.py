"""Measures an engine that is stepped by hand: the part that OpenVINO's and vLLM's scripts share.

An engine has `add(prompt, tokens)`, which takes the ids of a prompt and the number of tokens to generate,
and `step()`, which returns how many tokens it chose, or None when nothing is left to do.
"""

import argparse
import json
import os
import random
import statistics
import time

from work import CONTEXT, PROMPTS, STEPS, is_prefill, tokens

VOCABULARY = 50_000


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("work")
    parser.add_argument("--format", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def take_stdout():
    """The standard output for results alone; what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def prompt(length):
    return [random.randrange(300, VOCABULARY) for _ in range(length)]


def drain(engine):
    while engine.step() is not None:
        pass


def prefill(engine, length):
    """Tokens a second, the median of some prompts after one to warm up."""
    seconds = []
    for _ in range(PROMPTS + 1):
        ids = prompt(length)
        began = time.perf_counter()
        engine.add(ids, 1)
        while not engine.step():
            pass
        seconds.append(time.perf_counter() - began)
        drain(engine)
    return length / statistics.median(seconds[1:])


def decode(engine, batch):
    """Tokens a second of all sequences together."""
    for _ in range(batch):
        # Some decode while others are still being fed.
        engine.add(prompt(CONTEXT), STEPS + 4 * batch + 8)
    while engine.step() != batch:
        pass
    engine.step()
    began = time.perf_counter()
    for _ in range(STEPS):
        chosen = engine.step()
        assert chosen == batch, f"a step chose {chosen} tokens for {batch} sequences"
    return batch * STEPS / (time.perf_counter() - began)


def report(engine, work, out):
    """Does `work` and prints the rate, or a line at the first token of a short prompt."""
    random.seed(1)
    if work == "start":
        engine.add(prompt(8), 1)
        while not engine.step():
            pass
        print("first token", file=out, flush=True)
        return
    rate = prefill(engine, tokens(work)) if is_prefill(work) else decode(engine, tokens(work))
    print(json.dumps({"tokens_per_second": rate}), file=out, flush=True)
