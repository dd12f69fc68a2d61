"""llama.cpp's own converter, told the pre-tokenizer of a random checkpoint, which it would look up by
the hash of a tokenizer it knows: gguf_convert.py SOURCE ARGUMENTS..."""

import runpy
import sys

source = sys.argv.pop(1)
sys.argv[0] = f"{source}/convert_hf_to_gguf.py"
sys.path[:0] = [source, f"{source}/gguf-py"]

from conversion.base import TextModel

TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
runpy.run_path(sys.argv[0], run_name="__main__")
