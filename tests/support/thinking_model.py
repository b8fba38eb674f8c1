"""Makes a model whose tokenizer knows the marks of reasoning and tool calls, from one that does not.

    python thinking_model.py SOURCE DIRECTORY       # by the engine environment's Python, which has torch

As in Qwen3, the marks are tokens of their own and not special ones, and the template closes reasoning if told so.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CLOSED = "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


def main(source: Path, directory: Path) -> None:
    """Copy the model at `source` with four more tokens."""
    shutil.copytree(source, directory, dirs_exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    known = tokenizer["added_tokens"]
    first = max(one["id"] for one in known) + 1
    known += [{**known[0], "id": first + at, "content": mark, "special": False} for at, mark in enumerate(MARKS)]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": first + len(MARKS)}))
    weights = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], weights[name][: len(MARKS)]])
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    template = (source / "chat_template.jinja").read_text()
    if PROMPT not in template:
        raise ValueError("the template's generation prompt is another one")
    (directory / "chat_template.jinja").write_text(template.replace(PROMPT, PROMPT + CLOSED))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
