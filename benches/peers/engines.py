"""The engines: how each gets its files, and how it does a piece of work.

`prepare(format)` makes what `measure(work, format)` needs. That returns what was measured
(`tokens_per_second`, or `seconds` for a start) with what machine.run says about the process.
"""

import http.client
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import time

import machine
from install import HERE, call
from work import CONTEXT, PROMPTS, STEPS, is_prefill, tokens


class LlamaCpp:
    """llama-bench for prompts, llama-batched-bench for decoding, llama-completion for the start."""

    name = "llama.cpp"
    formats = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}

    def __init__(self, place, shape, precast, threads, kv8=False):
        self.place, self.shape, self.precast, self.threads = place, shape, precast, threads
        self.kv = "q8_0" if kv8 else "f16"

    def prepare(self, format):
        self.programs = self.place.llama_build()
        whole = self.place.make(
            f"models/{self.shape}/bf16.gguf", f"{self.shape} as GGUF", self._convert
        )
        if format == "bf16":
            return

        def quantize(path):
            call(self.programs / "llama-quantize", whole, path, self.formats[format], self.threads)

        what = f"{self.shape} as {self.formats[format]}"
        self.place.make(f"models/{self.shape}/{format}.gguf", what, quantize)

    def _convert(self, path):
        checkpoint = self.place.checkpoint(self.shape, self.precast)
        convert = [self.place.python("openvino"), HERE / "gguf_convert.py", self.place.llama_source()]
        call(*convert, checkpoint, "--outtype", "bf16", "--outfile", path)

    def measure(self, work, format):
        threads = str(self.threads)
        common = ["-m", self.place.directory / f"models/{self.shape}/{format}.gguf", "-t", threads]
        common += ["-ctk", self.kv, "-ctv", self.kv]
        if work == "start":
            command = [self.programs / "llama-completion", *common, "-c", "4096", "-n", "1"]
            command += ["-p", "Yes it is", "-no-cnv", "--no-display-prompt", "--ignore-eos"]
            return machine.run(command, until_output=True)[1]
        if is_prefill(work):
            command = [self.programs / "llama-bench", *common, "-fa", "1", "-r", str(PROMPTS)]
            command += ["-p", str(tokens(work)), "-n", "0", "-o", "json"]
            output, used = machine.run(command)
            rate = statistics.median(json.loads(output)[0]["samples_ts"])
        else:
            batch = tokens(work)
            command = [self.programs / "llama-batched-bench", *common, "-fa", "on", "-pps"]
            command += ["-npp", str(CONTEXT), "-ntg", str(STEPS), "-npl", str(batch)]
            command += ["-c", str(batch * (CONTEXT + STEPS) + 256), "--output-format", "jsonl"]
            output, used = machine.run(command)
            rate = _last_json(output)["speed_tg"]
        return {"tokens_per_second": rate, **used}


class OpenVino:
    """OpenVINO GenAI on an export by optimum-intel; the fp16 export computes in bf16."""

    name = "openvino"
    formats = {"bf16": "fp16", "int8": "int8", "int4": "int4"}

    kv = "u8"

    def __init__(self, place, shape, precast, threads, _kv8=False):
        self.place, self.shape, self.precast, self.threads = place, shape, precast, threads

    def prepare(self, format):
        self.python = self.place.python("openvino")
        checkpoint = self.place.checkpoint(self.shape, self.precast)

        def export(path):
            command = [self.python.parent / "optimum-cli", "export", "openvino"]
            command += ["--model", checkpoint, "--task", "text-generation-with-past"]
            command += ["--weight-format", self.formats[format], path]
            call(*command, env={**os.environ, "HF_HUB_OFFLINE": "1"})

        what = f"{self.shape} in {self.formats[format]} for OpenVINO"
        self.model = self.place.make(f"models/{self.shape}/openvino-{format}", what, export)

    def measure(self, work, format):
        model = self.place.directory / f"models/{self.shape}/openvino-{format}"
        command = [self.python, HERE / "openvino_steps.py", model, work]
        command += ["--threads", str(self.threads)]
        return _stepped(command, work)


class Vllm:
    """vLLM for CPUs with AMD's zentorch; int8 weights and inputs."""

    name = "vllm"
    formats = {"bf16": "bf16", "int8": "W8A8"}

    kv = "bf16"

    def __init__(self, place, shape, precast, threads, _kv8=False):
        self.place, self.shape, self.precast, self.threads = place, shape, precast, threads

    def prepare(self, format):
        self.python = self.place.python("vllm")
        checkpoint = self.place.checkpoint(self.shape, self.precast)

        def quantize(path):
            call(self.python, HERE / "vllm_quantize.py", checkpoint, path)

        if format != "bf16":
            what = f"{self.shape} in {self.formats[format]} for vLLM"
            self.place.make(f"models/{self.shape}/vllm-{format}", what, quantize)

    def measure(self, work, format):
        model = self.place.directory / f"models/{self.shape}/vllm-{format}"
        if format == "bf16":
            model = self.place.checkpoint(self.shape, self.precast)
        libraries = list((self.python.parent.parent / "lib").glob("libiomp5.so"))
        libraries += pathlib.Path("/usr/lib").rglob("libtcmalloc_minimal.so.4")
        environment = {
            "LD_PRELOAD": ":".join(str(library) for library in libraries),
            "VLLM_CACHE_ROOT": str(self.place.directory / "vllm-cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.place.directory / "vllm-cache/inductor"),
        }
        command = [self.python, HERE / "vllm_steps.py", model, work, "--threads", str(self.threads)]
        return _stepped(command, work, environment)


class Precast:
    """This repository: the speed benchmark, and `serve` for the start."""

    name = "precast"
    formats = {"bf16": "bf16", "int8": "w8a8", "int4": "w4a8"}

    def __init__(self, place, shape, precast, threads, kv8=False, head=True):
        self.place, self.shape, self.precast, self.threads = place, shape, precast, threads
        self.kv = "int8" if kv8 else "bf16"
        self.head = head

    def prepare(self, format):
        self.place.checkpoint(self.shape, self.precast)
        # The artifacts are compiled anew: kernels and layouts may have changed.
        for work in ["decode:1", "decode:24"]:
            call(*self._speed(format), "--work", work, "--runs", "1", "--json")

    def _speed(self, format):
        command = [self.precast["speed"], self.shape, self.formats[format]]
        command += ["--dir", str(self.place.checkpoints), "--threads", str(self.threads)]
        command += ["--quantize-head"] if self.head and format != "bf16" else []
        return command + (["--quantize-kv"] if self.kv == "int8" else [])

    def _artifact(self, format):
        head = "-head" if self.head and format != "bf16" else ""
        kv = "-kv" if self.kv == "int8" else ""
        return self.place.checkpoints / f"{self.shape}-{self.formats[format]}{head}{kv}-few-artifact"

    def measure(self, work, format):
        if work == "start":
            return self._start(self._artifact(format))
        name = f"prefill:{tokens(work)}" if is_prefill(work) else f"decode:{tokens(work)}"
        runs = PROMPTS if is_prefill(work) else 1
        command = [*self._speed(format), "--work", name, "--runs", str(runs), "--json", "--keep"]
        output, used = machine.run(command)
        return {**_last_json(output), **used}

    def _start(self, artifact):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [self.precast["precast-under-bench"], "serve", str(artifact), "--port", str(port)]
        command += ["--threads", str(self.threads)]
        busy, began = machine.busy_seconds(), time.monotonic()
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            seconds = _first_token(port, began)
        finally:
            server.kill()
            _, _, usage = os.wait4(server.pid, 0)
            server.returncode = -9
        return machine.used(usage, seconds, began, busy)


def _first_token(port, began):
    body = {"input_ids": list(range(1, 9)), "stream": True}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
            break
        except ConnectionRefusedError:
            if time.monotonic() - began > 120:
                raise machine.Failed("precast serve did not come up") from None
            time.sleep(0.001)
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data: "):
        if not line:
            raise machine.Failed(f"precast serve answered with {answer.status} and no token")
    return time.monotonic() - began


def _stepped(command, work, environment=None):
    if work == "start":
        return machine.run(command, environment, until_output=True)[1]
    output, used = machine.run(command, environment)
    return {**_last_json(output), **used}


def _last_json(output):
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise machine.Failed(f"no result in: {output[-500:]}")
    return json.loads(lines[-1])


PEERS = {engine.name: engine for engine in (LlamaCpp, OpenVino, Vllm)}
