"""Names of the pieces of work, formats and shapes."""

THREADS = 2
CONTEXT = 512
STEPS = 32
PROMPTS = 3

SHAPES = ["qwen2.5-0.5b", "qwen3-0.6b", "qwen3-moe-small", "gpt-oss-small"]
FORMATS = ["bf16", "int8", "int4"]
WORK = ["prefill", "prefill2048", "b1", "b8", "b16", "b24", "start"]


def tokens(work):
    """Tokens of a prompt, or of a decode step, that `work` measures; 1 for a start."""
    if work.startswith("prefill"):
        return int(work.removeprefix("prefill") or 512)
    return 1 if work == "start" else int(work.removeprefix("b"))


def is_prefill(work):
    return work.startswith("prefill")
