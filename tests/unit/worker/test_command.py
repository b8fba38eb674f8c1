"""Settings and the engine's command line."""

from __future__ import annotations

import json

import pytest

from pearl_worker.engine_command import engine_command
from pearl_worker.settings import Device, from_env

MINIMUM = {"PEARL_MODEL_URI": "pvc://models/qwen", "PEARL_MODEL_NAME": "Qwen"}


def test_every_engine_is_guarded_and_can_hand_over_both_ways() -> None:
    command = engine_command(from_env(MINIMUM), {"PATH": "/bin"}, "secret")
    options = dict(zip(command.argv, command.argv[1:], strict=False))
    assert options["serve"] == "/pvc/models/qwen"
    assert options["--middleware"] == "pearl_engine_plugins.guard.EngineGuard"
    transfer = json.loads(options["--kv-transfer-config"])
    assert (transfer["kv_role"], transfer["kv_load_failure_policy"]) == ("kv_both", "recompute")
    assert (command.environment["PEARL_GATE"], command.environment["PEARL_ENGINE_ADMIN_TOKEN"]) == ("closed", "secret")
    assert "secret" not in " ".join(command.argv)  # command lines are world-readable


def test_the_users_arguments_come_last_so_that_they_win() -> None:
    settings = from_env({**MINIMUM, "PEARL_ENGINE_ARGS": '["--max-num-seqs", "8"]', "PEARL_ENGINE_DEVICE": "cpu"})
    assert engine_command(settings, {}, "x").argv[-2:] == ("--max-num-seqs", "8")


def test_a_borrower_pins_kv_for_3_seconds_only() -> None:
    loan = {"PEARL_LOAN_NAME": "job-0", "PEARL_LOAN_NAMESPACE": "train"}
    assert (from_env(MINIMUM).lease_seconds, from_env(MINIMUM | loan).lease_seconds) == (10.0, 3.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"PEARL_MODEL_URI": ""}, "PEARL_MODEL_URI is not set"),
        ({"PEARL_ENGINE_ARGS": "--x"}, "PEARL_ENGINE_ARGS='--x' is no JSON list"),
        ({"PEARL_DRAIN_SECONDS": "soon"}, "PEARL_DRAIN_SECONDS='soon'"),
        ({"PEARL_TENSOR_PARALLEL": "1.5"}, "PEARL_TENSOR_PARALLEL='1.5' is not whole"),
        ({"PEARL_ENGINE_DEVICE": "tpu"}, "use one of cpu, gpu"),
        ({"PEARL_LOAN_NAME": "job"}, "PEARL_LOAN_NAMESPACE is not set"),
        (
            {"PEARL_LOAN_NAME": "job", "PEARL_LOAN_NAMESPACE": "t", "PEARL_ENGINE_DEVICE": "cpu"},
            "PEARL_FAKE_DEVICE_DIR is not set",
        ),
    ],
)
def test_a_wrong_variable_is_named(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match="PEARL_") as caught:
        from_env(MINIMUM | wrong)
    assert message in str(caught.value)


def test_the_cpu_has_its_own_arguments() -> None:
    cpu = engine_command(from_env({**MINIMUM, "PEARL_ENGINE_DEVICE": Device.CPU.value}), {}, "x")
    gpu = engine_command(from_env(MINIMUM), {}, "x")
    assert "--enforce-eager" in cpu.argv
    assert "--enable-sleep-mode" in gpu.argv
    assert cpu.environment["TORCHDYNAMO_DISABLE"] == "1"


@pytest.mark.parametrize(("size", "executor"), [("1", "uni"), ("2", "mp")])
def test_a_cpu_engine_of_several_ranks_gets_a_process_for_each(size: str, executor: str) -> None:
    settings = from_env({**MINIMUM, "PEARL_ENGINE_DEVICE": "cpu", "PEARL_TENSOR_PARALLEL": size})
    command = engine_command(settings, {}, "x")
    options = dict(zip(command.argv, command.argv[1:], strict=False))
    assert (options["--tensor-parallel-size"], options["--distributed-executor-backend"]) == (size, executor)
