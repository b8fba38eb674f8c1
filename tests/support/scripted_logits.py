"""A logits processor for vLLM that makes a model of random weights say what a test wants.

`vllm serve --logits-processors scripted_logits:Scripted`, and in a request `vllm_xargs: {"say": TEXT}`: what follows
the last `<|im_start|>` of the prompt is TEXT, wherever in it generation begins, so that a resumed answer goes on in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams


class Scripted(AdapterLogitsProcessor):
    """Lets through only the next token of the request's script; behind its end, any."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._tokenizer = Tokenizer.from_file(str(Path(vllm_config.model_config.tokenizer) / "tokenizer.json"))
        self._mark = self._tokenizer.token_to_id("<|im_start|>")

    def is_argmax_invariant(self) -> bool:
        """It decides what is sampled."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], list[int], torch.Tensor], torch.Tensor] | None:
        """The processor of one request; None where it has no script."""
        say = (params.extra_args or {}).get("say")
        if say is None:
            return None
        script = self._tokenizer.encode(say, add_special_tokens=False).ids

        def force(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            at = prompt_ids[::-1].index(self._mark) + len(output_ids)
            if at >= len(script):
                return logits
            only = torch.full_like(logits, float("-inf"))
            only[script[at]] = 0.0
            return only

        return force
