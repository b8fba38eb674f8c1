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
from pearl_gateway.load.run import LoadSpec, prepare, run_load, summed_up
from pearl_gateway.load.synthetic import Synthetic

_SHOWN = 10
"""Problems that are printed; the JSON has them all."""
_INTERRUPTED = 130


def main() -> int:
    """Exit code 0: everything finished and nothing differs; 1: something did not; 2: it could not start."""
    options = _parser().parse_args()
    console = Console(stderr=True)
    try:
        spec = _spec(options)
        prepared = prepare(spec)
        _check_folder(options.json)
    except ValueError as error:
        return _failed(console, error)
    progress = prepared.progress()
    _say(
        console,
        f"{progress.trajectories} trajectories in {spec.groups} groups, {progress.turns} turns; token counts × "
        f"{prepared.token_factor:.4g} to fit {spec.context} tokens, tool delays × {spec.style.time_scale:g}",
    )
    interrupted = False
    try:
        summary = asyncio.run(run_load(spec, prepared, progress, partial(show, console=console)))
    except LoadError as error:
        return _failed(console, error)
    except KeyboardInterrupt:
        interrupted = True
        progress.troubles.append("interrupted; the batch is still open in the gateway")
        summary = summed_up(spec, prepared, progress, time.monotonic() - progress.started_at)
    _write(console, options.json, json.dumps(summary.to_dict(), indent=2))
    _say(
        console,
        f"{summary.turns} turns, {summary.generated_tokens} tokens in {summary.duration_seconds:.1f} s; "
        f"{summary.finished} of {summary.trajectories} trajectories finished, {summary.repeats} requests repeated, "
        f"{summary.checked} turns checked, {summary.wrong} differ",
    )
    for problem in summary.problems[:_SHOWN]:
        _say(console, problem, "red")
    if len(summary.problems) > _SHOWN:
        _say(console, f"and {len(summary.problems) - _SHOWN} more problems: see `problems` in the JSON", "red")
    if interrupted:
        return _INTERRUPTED
    return 0 if summary.good else 1


def _say(console: Console, text: str, style: str | None = None) -> None:
    # Whole lines, and no markup: messages of servers may hold brackets.
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _failed(console: Console, error: Exception) -> int:
    _say(console, f"pearl-load: {error}", "red")
    return 2


def _check_folder(path: str | None) -> None:
    """Before a run of an hour, not after it."""
    if path is not None and (not Path(path).parent.is_dir() or Path(path).is_dir()):
        raise ValueError(f"--json {path}: give a file in a folder that exists")


def _write(console: Console, path: str | None, content: str) -> None:
    if path is None:
        print(content)
        return
    try:
        Path(path).write_text(content + "\n")
    except OSError as error:
        _say(console, f"--json {path}: {error}; the result goes to standard output", "red")
        print(content)


def _token(options: argparse.Namespace) -> str | None:
    if not options.token_file:
        token: str | None = options.token
        return token
    try:
        return Path(options.token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {options.token_file}: {error}") from None


def _spec(options: argparse.Namespace) -> LoadSpec:
    style = Style(
        path=options.path,
        temperature=options.temperature,
        time_scale=options.time_scale,
        concurrency=options.concurrency,
        rate=options.rate,
        stream=options.stream,
        permits=not options.no_permits,
    )
    return LoadSpec(
        url=options.url,
        run=options.run or f"load-{int(time.time())}",
        sessions=options.sessions,
        synthetic=_synthetic(options),
        token=_token(options),
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


def _synthetic(options: argparse.Namespace) -> Synthetic | None:
    if options.synthetic is None:
        return None
    return Synthetic(
        sessions=options.synthetic,
        turns=options.turns,
        prompt_tokens=options.prompt_tokens,
        response_tokens=options.response_tokens,
        tool_tokens=options.tool_tokens,
        tool_seconds=options.tool_seconds,
        spread=options.spread,
    )


def _parser() -> argparse.ArgumentParser:
    description = "Play recorded or made-up agent sessions against a gateway and check every token of every answer."
    parser = argparse.ArgumentParser(
        prog="pearl-load", description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("url", help="the gateway, for example http://127.0.0.1:8080")
    add("--token", help="client token")
    add("--token-file", help="file with the client token")
    add("--model", help="served model name")
    add("--sessions", default="trie_office_work_first8", help="a shipped recording or a path")
    add("--path", choices=("tokens", "completions", "chat"), default="tokens", help="how turns are asked for")
    add("--stream", action="store_true", help="stream the answers, which measures the first token too")
    made = parser.add_argument_group("sessions that are made up instead, log-normal around these means")
    made.add_argument("--synthetic", type=int, metavar="N", help="so many sessions, instead of a recording")
    made.add_argument("--turns", type=float, default=6.0, help="turns of a session")
    made.add_argument("--prompt-tokens", type=float, default=500.0, help="what a session begins with")
    made.add_argument("--response-tokens", type=float, default=100.0, help="an answer")
    made.add_argument("--tool-tokens", type=float, default=200.0, help="what a tool adds to the context")
    made.add_argument("--tool-seconds", type=float, default=1.0, help="how long a tool takes")
    made.add_argument("--spread", type=float, default=0.7, help="σ of the logarithm; 0 = all alike")
    add("--groups", type=int, default=4, help="groups of one batch")
    add("--group-size", type=int, default=4, help="trajectories of one group")
    add("--step", type=int, default=0, help="step of the batch; new for every run on one gateway")
    add("--concurrency", type=int, default=64, help="closed loop: trajectories at once")
    add("--rate", type=float, help="open loop: groups that arrive per second, whatever has become of earlier ones")
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
