"""The `pearl-load` command."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from pearl_gateway.load.client import LoadError
from pearl_gateway.load.live import show
from pearl_gateway.load.replay import Style
from pearl_gateway.load.run import LoadSpec, prepare, run_load


def main() -> int:
    """Exit code 0: everything finished and nothing differs; 1: something did not; 2: it could not start."""
    options = _parser().parse_args()
    console = Console(stderr=True)
    spec = _spec(options)
    try:
        prepared = prepare(spec)
    except ValueError as error:
        console.print(f"[red]pearl-load: {error}[/red]")
        return 2
    progress = prepared.progress()
    console.print(
        f"{progress.trajectories} trajectories in {spec.groups} groups, {progress.turns} turns; token counts × "
        f"{prepared.token_factor:.4f} to fit {spec.context} tokens, tool delays × {spec.style.time_scale:g}"
    )
    try:
        summary = asyncio.run(run_load(spec, prepared, progress, partial(show, console=console)))
    except LoadError as error:
        console.print(f"[red]pearl-load: {error}[/red]")
        return 2
    content = json.dumps(summary.to_dict(), indent=2)
    if options.json is None:
        print(content)
    else:
        Path(options.json).write_text(content + "\n")
    console.print(
        f"{summary.turns} turns, {summary.generated_tokens} tokens in {summary.duration_seconds:.1f} s; "
        f"{summary.finished} of {summary.trajectories} trajectories finished, {summary.repeats} requests repeated, "
        f"{summary.checked} turns checked, {summary.wrong} differ"
    )
    return 0 if summary.good else 1


def _spec(options: argparse.Namespace) -> LoadSpec:
    token = Path(options.token_file).read_text().strip() if options.token_file else options.token
    style = Style(
        path=options.path,
        temperature=options.temperature,
        time_scale=options.time_scale,
        concurrency=options.concurrency,
        permits=not options.no_permits,
    )
    return LoadSpec(
        url=options.url,
        run=options.run or f"load-{int(time.time())}",
        sessions=options.sessions,
        token=token,
        model=options.model,
        step=options.step,
        groups=options.groups,
        group_size=options.group_size,
        context=options.context,
        vocabulary=options.vocabulary,
        most_turns=options.most_turns,
        response_factor=options.response_factor,
        input_factor=options.input_factor,
        seed=options.seed,
        style=style,
        reference=options.reference,
        reference_token=options.reference_token,
        give_up_seconds=options.give_up_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pearl-load", description="Replay recorded agent sessions against a gateway.")
    add = parser.add_argument
    add("url", help="the gateway, for example http://127.0.0.1:8080")
    add("--token", help="client token")
    add("--token-file", help="file with the client token")
    add("--model", help="served model name")
    add("--sessions", default="trie_office_work_first8", help="a shipped recording or a path")
    add("--path", choices=("tokens", "completions", "chat"), default="tokens", help="how turns are asked for")
    add("--groups", type=int, default=4, help="groups of one batch")
    add("--group-size", type=int, default=4, help="trajectories of one group")
    add("--step", type=int, default=0, help="step of the batch; new for every run on one gateway")
    add("--concurrency", type=int, default=64, help="trajectories at once")
    add("--context", type=int, default=2048, help="the model's context in tokens")
    add("--vocabulary", type=int, default=256, help="token ids are drawn from below this")
    add("--most-turns", type=int, help="cut sessions after this many turns")
    add("--response-factor", type=float, default=1.0, help="make answers longer or shorter")
    add("--input-factor", type=float, default=1.0, help="make prompts and tool outputs longer or shorter")
    add("--time-scale", type=float, default=1.0, help="factor on tool delays")
    add("--temperature", type=float, default=0.0, help="0 is greedy, which --reference needs")
    add("--seed", default="pearl", help="another seed, other tokens")
    add("--run", help="prefix of all trajectory names; default by the time")
    add("--no-permits", action="store_true", help="start groups without asking for admission")
    add("--reference", help="an undisturbed engine; every turn is compared with its greedy answer")
    add("--reference-token", help="its token")
    add("--give-up-seconds", type=float, default=600.0, help="how long one request is repeated")
    add("--json", help="write the summary here instead of standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
