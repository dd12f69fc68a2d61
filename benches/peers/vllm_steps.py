"""vLLM's engine in one process, stepped by hand."""

import os

from steps import arguments, report, take_stdout

args, out = arguments(), take_stdout()
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_CPU_OMP_THREADS_BIND=f"0-{args.threads - 1}",
    VLLM_NO_USAGE_STATS="1",
    OMP_NUM_THREADS=str(args.threads),
    HF_HUB_OFFLINE="1",
)

import vllm


class Engine:
    def __init__(self):
        self.engine = vllm.LLM(
            args.model,
            dtype="bfloat16",
            max_model_len=4096,
            max_num_seqs=32,
            max_num_batched_tokens=4096,
            enable_prefix_caching=False,
        ).llm_engine
        self.added = 0
        self.seen = {}

    def add(self, prompt, tokens):
        parameters = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self.engine.add_request(str(self.added), {"prompt_token_ids": prompt}, parameters)
        self.added += 1

    def step(self):
        if not self.engine.has_unfinished_requests():
            return None
        chosen = 0
        for output in self.engine.step():
            length = len(output.outputs[0].token_ids)
            chosen += length - self.seen.get(output.request_id, 0)
            self.seen[output.request_id] = length
        return chosen


report(Engine(), args.work, out)
# Its threads need not be joined.
out.flush()
os._exit(0)
