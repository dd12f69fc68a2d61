"""A small file in the format of ShareGPT, always the same."""

import json
import random

from serving import DEMO, WORK

WORDS = """plan bucket graph cache token batch step weight kernel layer prompt answer server client
time memory block table output input model stream queue replay compile serve measure""".split()


def sharegpt(conversations=300):
    """The file's path."""
    draw = random.Random(0)
    text = lambda: " ".join(draw.choices(WORDS, k=draw.randint(4, 60)))
    talks = [{"conversations": [{"value": text()}, {"value": text()}]} for _ in range(conversations)]
    path = WORK / "sharegpt.json"
    path.write_text(json.dumps(talks))
    return path


def options(backend, output, *, requests, concurrency, inputs=48, outputs=24, model=DEMO):
    """Options that both clients understand. Lengths are fixed: every total is known."""
    return [
        "--backend", backend, "--model", str(model), "--dataset-name", "random",
        "--dataset-path", str(sharegpt()), "--random-input-len", str(inputs),
        "--random-output-len", str(outputs), "--random-range-ratio", "1",
        "--num-prompts", str(requests), "--max-concurrency", str(concurrency),
        "--output-file", str(output), "--disable-tqdm",
    ]
