from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pearl_simulator.errors import InputError
from pearl_simulator.types import CapacityChange, Feeding
from pearl_simulator.workloads.workload_file import load, parse

EXAMPLES = Path(__file__).parents[2] / "examples/workloads"
GOOD: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "gpu": "H100",
    "tensorParallel": 2,
    "fleet": {"reserved": 4, "elastic": 4, "borrowed": 8},
    "workload": {
        "groups": 2,
        "groupSize": 3,
        "turns": {"median": 6, "sigma": 0.4},
        "firstPrompt": 1000,
        "appended": {"median": 200, "sigma": 0.5},
        "generated": {"median": 100, "sigma": 0.5},
        "environment": {"median": 1.0, "sigma": 0.5},
    },
    "training": {"updateSeconds": 30},
}


def changed(**fields: Any) -> dict[str, Any]:
    """GOOD with some fields changed; `workload__turns` is a field of a section, None takes a field out."""
    data = deepcopy(GOOD)
    for path, value in fields.items():
        *sections, name = path.split("__")
        place = data
        for section in sections:
            place = place[section]
        if value is None:
            place.pop(name)
        else:
            place[name] = value
    return data


def parsed(data: Any, folder: Path = Path()) -> Any:
    return parse(data, name="mine", folder=folder)


def test_a_file_says_the_whole_scenario() -> None:
    scenario = parsed(GOOD)
    assert scenario.fleet.gpus_per_worker == 2
    assert (scenario.fleet.reserved_gpus, scenario.fleet.elastic_max_gpus, scenario.fleet.borrowed_max_gpus) == (
        4,
        4,
        8,
    )
    assert scenario.calibration.table.name == "Qwen/Qwen3-8B/H100-TP2"
    assert scenario.training.update_seconds == 30
    assert scenario.training.feeding is Feeding.REFILL
    assert scenario.horizon_seconds == 7200
    assert scenario.router.window is None
    assert len(scenario.workload.batch(0, 0)) == 6
    assert scenario.workload.batch(0, 0)[0].turns[0].appended_tokens == 1000


@pytest.mark.parametrize("name", ["swe", "search", "math"])
def test_the_examples_are_usable(name: str) -> None:
    scenario = load(EXAMPLES / f"{name}.yaml")
    assert scenario.name == name
    batch = scenario.workload.batch(0, 0)
    assert len(batch) == scenario.workload.groups * scenario.workload.group_size


def test_files_beside_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"turns": [{"appended": 5, "generated": 6, "environmentSeconds": 1}]}')
    (tmp_path / "spot.csv").write_text("0,5\n60000,9\n")
    data = changed(workload={"recorded": "runs.jsonl", "groups": 1, "groupSize": 1}, capacity="spot.csv")
    scenario = parsed(data, tmp_path)
    assert scenario.workload.batch(0, 0)[0].turns[0].generated_tokens == 6
    # 4 reserved and at most 4 elastic: 9 nodes are 8.
    assert scenario.capacity == (CapacityChange(0.0, 1), CapacityChange(60.0, 4))


def test_a_measured_engine_is_used(tmp_path: Path) -> None:
    table = {
        "decode": {"fixed_seconds": 0.1, "per_sequence_seconds": 0.01, "per_context_token_seconds": 0.0},
        "prefill": {"fixed_seconds": 0.2, "per_token_seconds": 0.001, "per_token_pair_seconds": 0.0},
    }
    (tmp_path / "mine.json").write_text(json.dumps(table))
    scenario = parsed(changed(engineTable="mine.json", model="my-model"), tmp_path)
    assert scenario.calibration.table.decode_fixed_seconds == 0.1
    with pytest.raises(InputError, match=r"engineTable .*none\.json cannot be used"):
        parsed(changed(engineTable="none.json"), tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"tensorParallel": 1, "fleet": {"reserved": 1}},  # one GPU
        {"workload__groups": 1, "workload__groupSize": 1},  # B = 1
        {"workload__environment": None},  # no environment time
        {"workload__environment": 0},
        {"workload__turns": 1},
        {"training__updateSeconds": 0},
        {"fleet": {"reserved": 0, "elastic": 2}},
    ],
)
def test_small_and_plain_workloads_work(fields: dict[str, Any]) -> None:
    scenario = parsed(changed(**fields))
    assert all(turn.environment_seconds >= 0 for script in scenario.workload.batch(0, 0) for turn in script.turns)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "Llama-9"}, r"no engine table for model 'Llama-9'.*choose one of: .*Qwen/Qwen3-8B on A100-TP1"),
        ({"gpu": "B9000"}, r"gpu is 'B9000'; give one of: H100, H200, A100"),
        ({"model": None}, "model is missing; give a text"),
        ({"tensorParallel": 3}, "no engine table .* tensorParallel 3"),
        ({"tensorParallel": "two"}, "tensorParallel is 'two'; give a number"),
        ({"fleet": None}, "fleet is missing; give a mapping"),
        ({"fleet": {"elastic": 4}}, r"fleet\.reserved is missing"),
        ({"fleet": {"reserved": 1}}, r"fleet has 1 GPUs, one worker needs tensorParallel = 2; raise fleet\.reserved"),
        ({"fleet__borrowed": -1}, r"fleet\.borrowed is -1; give a number from 0"),
        ({"fleet__reserved": 2.5}, r"fleet\.reserved is 2\.5; give a whole number"),
        ({"workload__groups": 0}, r"workload\.groups is 0; give a number from 1"),
        ({"workload__groups": 99999}, r"workload\.groups × groupSize is 299997 trajectories; give at most 16384"),
        ({"workload__generated": {"median": -3}}, r"workload\.generated\.median is -3"),
        ({"workload__generated": {"median": float("nan")}}, r"workload\.generated\.median is nan"),
        ({"workload__generated": {"median": float("inf")}}, r"workload\.generated\.median is inf"),
        ({"workload__generated": {"median": 9, "sigma": 40}}, r"generated\.sigma is 40, so rare values have no bound"),
        ({"workload__turns": {"median": 9, "sigma": 9}}, r"workload\.turns\.sigma is 9"),
        ({"workload__generated": None}, r"workload\.generated is missing"),
        ({"workload__generatd": 5}, r"workload\.generatd is not a field; did you mean 'generated'\?"),
        ({"workload__retained": 1.5}, r"workload\.retained is 1\.5; give a number from 0 to 1"),
        ({"workload__contextTokens": 1_000_000}, r"contextTokens is 1000000, but one worker .* KV room for 876000"),
        ({"workload__firstPrompt": 50_000}, r"workload\.firstPrompt is 50000 tokens, the context holds 32768"),
        ({"workload": {"preset": "swee"}}, r"workload\.preset is 'swee'; give one of: swe-cached"),
        ({"workload": {"preset": "search", "recorded": "x"}}, r"workload\.recorded is given beside workload\.preset"),
        ({"workload": {"recorded": "none.jsonl"}}, "recording none.jsonl: cannot be read"),
        ({"training": {}}, r"training\.updateSeconds is missing"),
        ({"training__feeding": "sometimes"}, r"training\.feeding is 'sometimes'; give one of: barrier, refill"),
        ({"training__needGroups": 3}, r"training\.needGroups is 3, a batch has 2 groups"),
        ({"training__maxStaleness": -1}, r"training\.maxStaleness is -1"),
        ({"capacity": "nowhere.csv"}, "capacity trace nowhere.csv: cannot be read"),
        ({"window": 0}, "window is 0; give a number from 1"),
        ({"hours": 1000}, "hours is 1000; give a number from 0.01 to 24"),
        ({"hello": 1}, "hello is not a field"),
    ],
)
def test_bad_input_gets_one_sentence_that_names_the_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        parsed(changed(**fields))
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(InputError, match=r"mine\.yaml cannot be read"):
        load(path)
    path.write_text("a: [")
    with pytest.raises(InputError, match="is not YAML") as error:
        load(path)
    assert "\n" not in str(error.value)
    path.write_text("")
    with pytest.raises(InputError, match="the file is missing"):
        load(path)
    path.write_text("- 1")
    with pytest.raises(InputError, match=r"the file is \[1\]; give a mapping"):
        load(path)
