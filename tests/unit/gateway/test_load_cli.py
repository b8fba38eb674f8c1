"""`pearl-load` as its users call it: against a gateway before emulated engines, and with what they get wrong."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from pearl_api.names import Activity, Role
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.load import cli, live
from pearl_gateway.load.live import progress_table, show
from pearl_gateway.load.replay import Played, Progress
from pearl_gateway.settings import Limits
from pearl_simulator.emulator import EngineConfig, emulated_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

MADE = ("--synthetic", "3", "--turns", "4", "--prompt-tokens", "20", "--response-tokens", "8", "--tool-tokens", "5")
QUICK = (*MADE, "--tool-seconds", "0.01", "--groups", "2", "--group-size", "2", "--token", "secret")
PLACE = "http://127.0.0.1:9"


@pytest.fixture
async def place(benches: Benches) -> AsyncIterator[tuple[str, str, Bench]]:
    """Addresses of a gateway and of a reference engine, and the gateway."""
    limits = Limits(max_model_len=2048, queue_seconds=5.0)
    async with emulated_fleet(EngineConfig(), 3) as engines, benches(limits) as bench:
        for name, engine in zip("ab", engines, strict=False):
            bench.gateway.fleet.upsert(
                WorkerFacts(name, name, engine.url, None, Role.COLOCATED, 0, Activity.ACTIVE, ready=True)
            )
        async with bench.served() as url:
            yield url, engines[2].url, bench


async def call(*words: str, interrupt_when: Callable[[], bool] | None = None) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of the command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pearl_gateway.load.cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if interrupt_when is not None:
        async with asyncio.timeout(60):
            while not interrupt_when():  # noqa: ASYNC110 - the gateway tells nobody
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    "how",
    [("--path", "tokens"), ("--path", "completions", "--rate", "50"), ("--path", "chat", "--stream")],
    ids=["closed loop", "open loop", "streamed chat"],
)
async def test_sessions_are_played_and_every_token_is_checked(
    place: tuple[str, str, Bench], how: tuple[str, ...]
) -> None:
    url, reference, _ = place
    code, out, err = await call(url, *QUICK, *how, "--reference", reference)
    found = json.loads(out)
    assert (code, found["good"], found["finished"], found["wrong"]) == (0, True, 4, 0)
    assert found["checked"] == found["turns"] == found["turns_planned"] > 4
    assert f"{found['turns']} turns checked, 0 differ" in err


async def test_recorded_sessions_are_played_with_their_delays(place: tuple[str, str, Bench], tmp_path: Path) -> None:
    url, *_ = place
    words = ("--sessions", "sweagent_demo", "--most-turns", "2", "--groups", "1", "--group-size", "1")
    result = tmp_path / "result.json"
    code, out, _ = await call(url, *words, "--token", "secret", "--time-scale", "0.5", "--json", str(result))
    found = json.loads(result.read_text())
    assert (code, out, found["turns"], found["finished"]) == (0, "", 2, 1)
    # One tool of 0.281 s between the two turns.
    assert found["duration_seconds"] >= 0.14


async def test_what_was_played_until_an_interrupt_is_told(place: tuple[str, str, Bench]) -> None:
    url, _, bench = place
    words = (*QUICK, "--time-scale", "100000", "--no-permits")
    code, out, err = await call(url, *words, interrupt_when=lambda: bench.gateway.tally.turns == 4)
    found = json.loads(out)
    assert (code, found["good"], found["turns_planned"] > found["turns"]) == (130, False, True)
    assert found["problems"][0].startswith("interrupted")
    assert "Traceback" not in err


async def test_a_step_that_was_played_already_is_a_sentence(place: tuple[str, str, Bench]) -> None:
    url, *_ = place
    assert (await call(url, *QUICK))[0] == 0
    code, out, err = await call(url, *QUICK, "--groups", "3")
    assert (code, out) == (2, "")
    assert "use a new step" in err
    assert "Traceback" not in err


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "address": (("localhost:8080",), "must begin with http:// or https://"),
    "reference address": ((PLACE, "--reference", "x"), "--reference 'x' must begin with http://"),
    "reference and temperature": ((PLACE, "--reference", PLACE, "--temperature", "1"), "leave --temperature at 0"),
    "nobody there": ((PLACE, "--give-up-seconds", "0.1"), "no gateway answers at http://127.0.0.1:9"),
    "reference not there": (
        (PLACE, "--reference", PLACE),
        "the reference http://127.0.0.1:9/inference/v1/generate does",
    ),
    "token file": ((PLACE, "--token-file", "/no/such"), "--token-file /no/such: "),
    "json": ((PLACE, "--json", "/no/such/file"), "--json /no/such/file: give a file in a folder that exists"),
    "sessions": ((PLACE, "--sessions", "none"), "no recording 'none': give the path of a file or one of"),
    "groups": ((PLACE, "--groups", "0"), "--groups 0 must be 1 or more"),
    "group size": ((PLACE, "--group-size", "0"), "--group-size 0 must be 1 or more"),
    "step": ((PLACE, "--step", "-1"), "--step -1 must be 0 or more"),
    "context": ((PLACE, "--context", "1"), "--context 1 must be 2 or more"),
    "vocabulary": ((PLACE, "--vocabulary", "32"), "--vocabulary 32 must be 33 or more"),
    "most turns": ((PLACE, "--most-turns", "0"), "--most-turns 0 must be 1 or more"),
    "concurrency": ((PLACE, "--concurrency", "0"), "--concurrency 0 must be 1 or more"),
    "time scale": ((PLACE, "--time-scale", "-1"), "--time-scale -1 must be a number from 0"),
    "factor": ((PLACE, "--response-factor", "nan"), "--response-factor nan must be a number above 0"),
    "rate": ((PLACE, "--rate", "0"), "--rate 0 must be a number above 0"),
    "run": ((PLACE, "--run", "a b"), "--run 'a b': use 1 to 150 of letters"),
    "synthetic": ((PLACE, "--synthetic", "0"), "--synthetic 0 must be 1 or more"),
    "spread": ((PLACE, "--synthetic", "1", "--spread", "9"), "--spread 9 must be from 0 to 3"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_a_sentence_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    words, sentence = WRONG[what]
    monkeypatch.setattr(sys, "argv", ["pearl-load", *words])
    assert cli.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err


def some_progress() -> Progress:
    progress = Progress(trajectories=4, turns=9, started_at=time.monotonic() - 2, finished=1, running=2)
    played: dict[str, Any] = {"trajectory": "t", "turn": 0, "prompt": [1], "token_ids": [1, 2], "seconds": 0.5}
    progress.played.append(Played(**played, first_seconds=None, repeats=1, versions=[]))
    progress.generated_tokens = 2
    return progress


def test_a_terminal_sees_the_numbers_of_the_moment() -> None:
    screen = io.StringIO()
    progress = some_progress()
    Console(file=screen, width=100).print(progress_table(progress, progress.started_at + 2))
    shown = " ".join(screen.getvalue().split())
    assert "trajectories 1 of 4, 2 running turns 1 of 9, 0 in a tool tokens 2, 1 per second" in shown
    assert "last 1 turns 0.500 s median, 0.500 s p99" in shown


async def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_EVERY_SECONDS", 0.001)
    screen = io.StringIO()
    task = asyncio.create_task(show(some_progress(), Console(file=screen, width=200)))
    async with asyncio.timeout(10):
        while screen.getvalue().count("\n") < 2:  # noqa: ASYNC110 - a console tells nobody
            await asyncio.sleep(0.005)
    task.cancel()
    assert screen.getvalue().splitlines()[0] == "1/9 turns, 1/4 trajectories, 2 tokens, 0 failed"
