"""An independent replay of the sessions of `cliff.py`: NVIDIA Dynamo's offline mocker, where it is installed.

    pip install --no-deps ai-dynamo-runtime==1.5.1        # Apache-2.0, 206 MB, no GPU

It gets the step times of the same engine table, written in the layout of its planner profile (which has no place for a
cached prefix: a chunk costs the same behind any history); batching, caching and routing are its own.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pearl_planner.engine.model import decode_seconds, prefill_seconds

if TYPE_CHECKING:
    from pearl_planner.engine.model import EngineTable

_MODULE = "dynamo._core"
_BLOCK = 64
_MOST_SEQUENCES = 256
_BATCHED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Question:
    """What is the same for all shapes."""

    table: EngineTable
    """With a KV capacity and a link."""
    gpus: int
    concurrency: int
    sessions: str
    """Name of a recording that ships."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the other program says."""

    seconds: float
    reuse: float


def available() -> bool:
    """Whether the package is installed."""
    try:
        importlib.import_module(_MODULE)
    except ImportError:
        return False
    return True


def replay(question: Question, shape: tuple[int, int] | None, *, stickiness: float) -> Replayed:
    """The sessions in `shape` (P:D, None = colocated); `stickiness` scales what its router charges for cold prompts.

    Raises:
        ImportError: the package is not installed.
    """
    os.environ.setdefault("DYN_LOG", "error")  # one line per request otherwise
    table = question.table
    other: Any = importlib.import_module(_MODULE)
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.npz")
        write_profile(profile, table)

        def arguments(kind: str) -> Any:
            return other.MockEngineArgs(
                engine_type="vllm",
                num_gpu_blocks=(table.kv_capacity_tokens or 0) // _BLOCK,
                block_size=_BLOCK,
                max_num_seqs=_MOST_SEQUENCES,
                max_num_batched_tokens=_BATCHED_TOKENS,
                worker_type=kind,
                kv_bytes_per_token=int(table.kv_bytes_per_token or 0),
                kv_transfer_bandwidth=table.transfer_bytes_per_second / 1e9,
                planner_profile_data=str(profile),
            )

        engines: dict[str, Any] = {"extra_engine_args": arguments("aggregated"), "num_workers": question.gpus}
        if shape is not None:
            engines = {
                "prefill_engine_args": arguments("prefill"),
                "decode_engine_args": arguments("decode"),
                "num_prefill_workers": shape[0],
                "num_decode_workers": shape[1],
            }
        with resources.as_file(resources.files("pearl_simulator") / f"data/agentic/{question.sessions}.jsonl") as file:
            done = other.run_mocker_trace_replay(
                [str(file)],
                router_mode="kv_router",
                router_config=other.KvRouterConfig(prefill_load_scale=stickiness),
                replay_concurrency=question.concurrency,
                trace_format="applied_compute_agentic",
                trace_block_size=_BLOCK,
                **engines,
            ).summary
    return Replayed(done["duration_ms"] / 1e3, done["prefix_cache_reused_ratio"])


def write_profile(path: Path, table: EngineTable) -> None:
    """The table's step times as arrays over prompt lengths, and over active KV tokens × context length."""
    lengths = np.unique(np.geomspace(16, 131_072, 120).round())
    active = np.concatenate([[0.0], np.unique(np.geomspace(16, 800_000, 80).round())])
    contexts = np.unique(np.geomspace(16, 131_072, 60).round())
    decode = [[decode_seconds(table, max(kv / c, 1.0), c) * 1e3 for c in contexts] for kv in active]
    np.savez(
        path,
        prefill_isl=lengths,
        prefill_ttft_ms=np.array([prefill_seconds(table, c, 0.0) * 1e3 for c in lengths]),
        decode_active_kv_tokens=active,
        decode_context_length=contexts,
        decode_itl=np.array(decode),
    )
