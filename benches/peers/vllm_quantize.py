"""Writes a W8A8 checkpoint in the compressed-tensors format, which vLLM loads: int8 weights with a scale
for each row, inputs quantised for each token; head and embedding stay: vllm_quantize.py MODEL OUT"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

KEPT = ("embed_tokens", "lm_head", "norm", ".mlp.gate.")


def quantized(name):
    return name.endswith(".weight") and not any(k in name for k in KEPT)


model, out = map(pathlib.Path, sys.argv[1:])
out.mkdir(parents=True)
for path in model.iterdir():
    if path.suffix == ".json" and path.name != "config.json":
        shutil.copy(path, out)

tensors = {}
with safe_open(model / "model.safetensors", "pt") as weights:
    for name in weights.keys():
        weight = weights.get_tensor(name)
        if quantized(name):
            rows = weight.float()
            scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            tensors[name] = torch.round(rows / scale).to(torch.int8)
            tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
        else:
            tensors[name] = weight
save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def scheme(strategy, dynamic):
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": dynamic}


config = json.loads((model / "config.json").read_text())
config["quantization_config"] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", r"re:.*\.mlp\.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": scheme("channel", False),
            "input_activations": scheme("token", True),
        }
    },
}
(out / "config.json").write_text(json.dumps(config, indent=2))
