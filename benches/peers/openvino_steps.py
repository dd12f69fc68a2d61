"""OpenVINO GenAI's continuous batching, stepped by hand. Keys and values have its default type."""

from steps import arguments, report, take_stdout

args, out = arguments(), take_stdout()

import numpy
import openvino
import openvino_genai

CACHE_GB = 3


class Engine:
    def __init__(self):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": "bf16"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            args.model, scheduler, "CPU", properties
        )
        self.added = 0
        self.handles = []

    def add(self, prompt, tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        self.handles.append(self.pipeline.add_request(self.added, ids, config))
        self.added += 1

    def step(self):
        if not self.pipeline.has_non_finished_requests():
            self.handles.clear()
            return None
        self.pipeline.step()
        chosen = 0
        for handle in self.handles:
            while handle.can_read():
                chosen += sum(len(o.generated_ids) for o in handle.read().values())
        return chosen


report(Engine(), args.work, out)
