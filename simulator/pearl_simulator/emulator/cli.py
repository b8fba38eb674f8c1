"""`python -m pearl_simulator.emulator`: one or many emulated engines as a process of their own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import fields, replace

from pearl_simulator.emulator.clock import LoopClock
from pearl_simulator.emulator.config import EngineConfig
from pearl_simulator.emulator.peers import LocalPeers, Peers
from pearl_simulator.emulator.perturb import Perturbation
from pearl_simulator.emulator.serving import EmulatedEngine


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pearl_simulator.emulator",
        description="Serve like `vllm serve`, with the timing of an engine table and tokens of the emulator's own.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port of the first engine; the next ones follow (default: %(default)s)")
    add("--engines", type=int, default=1, metavar="N", help="engines in this process (default: 1)")
    add("--model", help="served model name (default: the table's, `tiny` without a table)")
    add(
        "--table", metavar="MODEL/HARDWARE", help="engine table to take step times from; without one steps take no time"
    )
    add("--speed", type=float, default=1.0, help="engine seconds per second (default: 1)")
    add("--seed", type=int, default=0, help="of noise and injected faults (default: 0)")
    limits = parser.add_argument_group("limits, by default those of the table's engines")
    limits.add_argument("--max-model-len", type=int, metavar="TOKENS")
    limits.add_argument("--max-num-seqs", type=int, metavar="N")
    limits.add_argument("--max-num-batched-tokens", type=int, metavar="TOKENS")
    limits.add_argument("--block-size", type=int, metavar="TOKENS")
    limits.add_argument("--kv-tokens", type=int, metavar="TOKENS", help="room of the KV cache")
    limits.add_argument("--vocabulary", type=int, metavar="N", help="token ids that prompts may hold (default: 260)")
    limits.add_argument("--stream-interval", type=int, metavar="TOKENS", help="tokens per streamed event (default: 1)")
    limits.add_argument("--mean-answer-tokens", type=int, metavar="TOKENS", help="answers end by themselves; 0 = never")
    limits.add_argument("--kv-lease-seconds", type=float, metavar="SECONDS", help="how long KV waits (default: 30)")
    add("--enable-prompt-tokens-details", action="store_true", help="report cached tokens in usage")
    add("--lost-kv", choices=("recompute", "fail"), default="recompute", help="when KV cannot be fetched")
    add("--expired-kv-corrupts", action="store_true", help="wrong tokens, as vLLM can give, after a lease has ended")
    add("--nixl-port", type=int, default=0, help="side channel of the first engine (default: any)")
    wrong = parser.add_argument_group("perturbation")
    wrong.add_argument("--step-factor", type=float, default=1.0, help="on every step time (±20 %%: 0.8, 1.2)")
    wrong.add_argument("--host-seconds", type=float, default=0.0, help="hidden overhead per step")
    wrong.add_argument("--step-noise", type=float, default=0.0, metavar="SIGMA", help="log-normal factor on every step")
    wrong.add_argument("--start-seconds", type=float, default=0.0, help="until the engine listens")
    wrong.add_argument("--error-share", type=float, default=0.0, help="of requests: answered 500")
    wrong.add_argument("--hang-share", type=float, default=0.0, help="of requests: never answered")
    wrong.add_argument("--drop-share", type=float, default=0.0, help="of requests: the connection breaks")
    wrong.add_argument("--drop-after-tokens", type=int, default=1, help="of a dropped stream (default: 1)")
    wrong.add_argument("--fail-weight-load", action="store_true", help="the first weight load fails")
    return parser


def _config(options: argparse.Namespace) -> EngineConfig:
    given = {
        "model": options.model,
        "max_model_len": options.max_model_len,
        "max_sequences": options.max_num_seqs,
        "max_batched_tokens": options.max_num_batched_tokens,
        "block_tokens": options.block_size,
        "kv_tokens": options.kv_tokens,
        "vocabulary": options.vocabulary,
        "stream_interval": options.stream_interval,
        "mean_answer_tokens": options.mean_answer_tokens,
        "lease_seconds": options.kv_lease_seconds,
        "host": options.host,
        "side_port": options.nixl_port,
        "prompt_tokens_details": options.enable_prompt_tokens_details,
        "recompute_lost_kv": options.lost_kv == "recompute",
        "expired_kv_corrupts": options.expired_kv_corrupts,
    }
    base = EngineConfig.of_table(options.table) if options.table else EngineConfig()
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _perturbation(options: argparse.Namespace) -> Perturbation:
    return Perturbation(**{one.name: getattr(options, one.name) for one in fields(Perturbation)})


async def _serve(options: argparse.Namespace, config: EngineConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # One engine hands KV to other processes, many hand it to each other.
    peers: Peers | None = LocalPeers() if options.engines > 1 else None
    async with AsyncExitStack() as stack:
        engines = []
        for number in range(options.engines):
            engine = EmulatedEngine(
                config,
                port=options.port + number if options.port else 0,
                peers=peers,
                clock=LoopClock(options.speed),
                perturbation=_perturbation(options),
                seed=options.seed + number,
            )
            engines.append(await stack.enter_async_context(engine))
            print(engine.url, flush=True)
        for one in engines:
            one.when_dead(lambda: stop.set() if all(each.died.is_set() for each in engines) else None)
        await stop.wait()


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop, or until every engine has died; prints one URL per engine."""
    options = _parser().parse_args(arguments)
    try:
        config = _config(options)
        LoopClock(options.speed)
    except ValueError as error:  # a TableError is one
        print(f"error: {error}".replace("set spec.engine.table to one of", "--table takes one of"), file=sys.stderr)
        return 2
    asyncio.run(_serve(options, config))
    return 0
