"""What an emulated engine is started with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pearl_planner.engine.model import EngineTable, step_seconds
from pearl_planner.engine.tables import load_table
from pearl_simulator.emulator.scheduler import Limits, Step

VERSION = "0.32.0"
"""The vLLM release that is emulated."""
_UNKNOWN_KV_TOKENS = 65_536
"""KV room where a table does not know it: that of the project's CPU engine."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Defaults are those of the project's engines on CPU; `of_table` gives those of a GPU."""

    model: str = "tiny"
    table: EngineTable | None = None
    """How long a step takes; None = instant: no step takes any time."""
    max_model_len: int = 2048
    max_sequences: int = 16
    max_batched_tokens: int = 2048
    block_tokens: int = 32
    kv_tokens: int = _UNKNOWN_KV_TOKENS
    vocabulary: int = 260
    prefix_caching: bool = True
    stream_interval: int = 1
    """Tokens per streamed event, after the first."""
    mean_answer_tokens: int = 0
    """Answers end by themselves after so many tokens on average; 0 = never, they run into `max_tokens`."""
    lease_seconds: float = 30.0
    """How long KV waits for another engine."""
    recompute_lost_kv: bool = True
    """Compute a prompt whose KV cannot be fetched; False = answer 500, as vLLM's default policy."""
    expired_kv_corrupts: bool = False
    """Answer with wrong tokens when the lease had run out, as vLLM can; False = compute the prompt."""
    prompt_tokens_details: bool = False
    """Report `cached_tokens` in usage (vLLM's `--enable-prompt-tokens-details`)."""
    host: str = "127.0.0.1"
    side_port: int = 0
    """Of the side channel, in `kv_transfer_params`."""
    kv_transfer: bool = True
    """False = started without a KV connector."""
    weight_transfer: bool = True
    """False = started without `--weight-transfer-config`."""

    def __post_init__(self) -> None:
        """Raises ValueError for a limit that nothing fits in; the message names the field."""
        for name in ("max_model_len", "max_sequences", "max_batched_tokens", "block_tokens", "stream_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.kv_tokens < self.block_tokens:
            raise ValueError(f"kv_tokens is {self.kv_tokens}: a KV cache holds at least one block of block_tokens")
        if not 0 < self.vocabulary < 2**32 or self.mean_answer_tokens < 0 or not self.lease_seconds > 0:
            raise ValueError("vocabulary and lease_seconds must be above 0, mean_answer_tokens 0 or more")

    @classmethod
    def of_table(cls, name: str, **more: object) -> EngineConfig:
        """An engine of the shipped table `MODEL/HARDWARE`, with the limits that such engines run with.

        Raises:
            TableError: there is no such table.
        """
        table = load_table(name)
        base = cls(
            model=table.name.rpartition("/")[0] or table.name,
            table=table,
            max_model_len=32_768,
            max_sequences=256,
            max_batched_tokens=8192,
            block_tokens=16,
            kv_tokens=table.kv_capacity_tokens or _UNKNOWN_KV_TOKENS,
        )
        return replace(base, **more)  # type: ignore[arg-type]

    @property
    def limits(self) -> Limits:
        """Of the scheduler."""
        return Limits(self.max_model_len, self.max_sequences, self.max_batched_tokens)

    @property
    def blocks(self) -> int:
        """KV blocks, the unusable first one included."""
        return 1 + self.kv_tokens // self.block_tokens


def believed_seconds(table: EngineTable, step: Step) -> float:
    """t(n, c) of docs/models.md, "Engine step"; several chunks of one step share the fixed cost."""
    mean = step.context_tokens / step.decoding if step.decoding else 0.0
    chunk = step.chunk_tokens
    prefix = (step.chunk_pairs - chunk * chunk / 2) / chunk if chunk else 0.0
    return step_seconds(table, step.decoding, mean, chunk, prefix)
