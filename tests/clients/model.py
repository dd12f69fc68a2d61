"""A checkpoint of random weights in the demonstration model's family, with its tokenizer."""

import json
import pathlib
import shutil
import struct

import numpy

import serving

SIZES = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "head_dim": 64,
    "num_attention_heads": 12, "num_key_value_heads": 4, "max_window_layers": 12,
}


def shapes(config):
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_norm.weight", (head,)
        yield layer + "self_attn.k_norm.weight", (head,)
        for name, rows in [("q", queries), ("k", keys), ("v", keys)]:
            yield f"{layer}self_attn.{name}_proj.weight", (rows, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, queries)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)


def random_checkpoint():
    """Its directory, 0.2 GB."""
    out = serving.WORK / "random-model"
    if (out / "complete").exists():
        return out
    shutil.copytree(serving.DEMO, out, dirs_exist_ok=True)
    config = json.loads((out / "config.json").read_text()) | SIZES
    (out / "config.json").write_text(json.dumps(config))
    draw, header, end = numpy.random.default_rng(0), {}, 0
    for name, shape in shapes(config):
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (out / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(config):
            is_norm = len(shape) == 1
            values = numpy.ones(shape, "f4") if is_norm else draw.normal(0, 0.02, shape).astype("f4")
            file.write((values.view("u4") >> 16).astype("u2").tobytes())
    (out / "complete").touch()
    return pathlib.Path(out)
