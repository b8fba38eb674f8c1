"""What the model's own library says: a reference that shares nothing with the fleet."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pearl_dev.product import Installation

GREEDY = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model.generation_config.eos_token_id = None
rows = json.load(sys.stdin)
every = lambda ids: torch.ones(1, len(ids), dtype=torch.long)  # else it leaves out what equals the padding token
make = lambda ids, n: model.generate(
    torch.tensor([ids]), attention_mask=every(ids), max_new_tokens=n, min_new_tokens=n, do_sample=False
)
print(json.dumps([make(ids, n)[0, len(ids):].tolist() for ids, n in rows]))
"""
LOGPROBS = """
import json, sys, torch
from safetensors.torch import load_model
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
load_model(model, sys.argv[2])
def logprobs(ids):
    found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [found[index, token].item() for index, token in enumerate(ids[1:])]
with torch.no_grad():
    print(json.dumps([logprobs(ids) for ids in json.load(sys.stdin)]))
"""


def greedy(installation: Installation, model: str, rows: list[tuple[list[int], int]]) -> list[list[int]]:
    """Continuations of each (token ids, length)."""
    answers: list[list[int]] = _run(installation, GREEDY, rows, installation.artifacts.models[model])
    return answers


def logprobs(installation: Installation, weights: Path, rows: list[list[int]]) -> list[list[float]]:
    """Logprob of each token but the first under the tiny model with other `weights` (a `.safetensors` file)."""
    answers: list[list[float]] = _run(installation, LOGPROBS, rows, installation.artifacts.models["tiny"], weights)
    return answers


def _run(installation: Installation, script: str, rows: object, *arguments: Path) -> Any:
    argv = [installation.artifacts.engine / "bin" / "python", "-c", script, *arguments]
    done = subprocess.run(argv, input=json.dumps(rows), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
