"""The adapters on verl's own classes; only what computes on GPUs is stood in for. Prints JSON.

python verl_hooks.py WEIGHTS
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf
from pearl_double import PearlDouble
from verl.experimental.fully_async_policy.dynamic_schedule import DynamicScheduleContext, build_policy
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode

from pearl_trainer import PearlClient
from pearl_trainer.integrations import Cycle
from pearl_trainer.integrations.verl import lending_controller, lending_trainer, register_policy
from pearl_trainer.settings import Settings

STEPS = 3
CONFIG = {
    "data": {"train_batch_size": 2},
    "trainer": {"critic_warmup": 0, "v1": {"separate_async": {"num_warmup_batches": 0}}},
    "skip": {"rollout_tq": {"enable": False}},
    "actor_rollout_ref": {"rollout": {"temperature": 1.0}},
}


def cycle(pearl: PearlDouble, scratch: Path) -> Cycle:
    """A group of one pod, driven by this process."""
    (scratch / "token").write_text("projected")
    client = PearlClient(Settings(operator_url=pearl.url, token_file=str(scratch / "token")))

    def save(version: int) -> Path:
        pearl.note(f"save {version}")
        file = scratch / "model.safetensors"
        file.write_text(str(version))
        return file

    return Cycle(client.register_group(rollout="math", group="job-7", members=1, lend=False), save=save)


def v1_trainer(pearl: PearlDouble, scratch: Path) -> Any:
    """A trainer of verl's class whose models and engines only say that they were called."""
    lending_trainer(lambda _: cycle(pearl, scratch))
    trainer = (found := get_trainer_cls("pearl_separate_async")).__new__(found)
    numbers = count()

    def sample(**_: Any) -> tuple[Any, dict[str, Any]]:
        pearl.note("sample")
        return SimpleNamespace(extra_info={}, tags=[{}], keys=[f"k{next(numbers)}"], partition_id="train"), {}

    trainer.config = OmegaConf.create(CONFIG)
    trainer.hybrid_rollout_config = SimpleNamespace(enable_switch=False)
    trainer._enable_hybrid_replicas = False
    trainer.current_mode = HybridEngineMode.TRAINER
    trainer.parameter_sync_step = 2
    trainer.total_training_steps = STEPS
    trainer.prev_step_profile = False
    trainer.timing_raw = {}
    trainer.use_reference_policy = trainer.use_critic = False
    trainer._restored_tq_prompt_count = 0
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    trainer.prepare_step = dict
    trainer.replay_buffer = SimpleNamespace(sample=sample)
    trainer.standalone_checkpoint_manager = SimpleNamespace(update_weights=lambda step: pearl.note(f"sync {step}"))
    for name in ("_balance_batch", "_compute_old_log_prob", "_compute_advantage"):
        setattr(trainer, name, lambda batch, metrics: batch)  # noqa: ARG005 - verl's signature
    trainer._update_actor = lambda batch, metrics: (pearl.note("update"), batch)[1]  # noqa: ARG005 - verl's signature
    return trainer


def run_v1(pearl: PearlDouble, scratch: Path) -> None:
    """The calls of `PPOTrainer.fit`, in its order, around its own `step`."""
    trainer = v1_trainer(pearl, scratch)
    trainer.on_train_begin()
    for trainer.global_steps in range(1, STEPS + 1):
        trainer.on_step_begin()
        trainer.step({}, trainer.timing_raw)
        trainer.on_step_end()


async def run_fully_async(pearl: PearlDouble, scratch: Path) -> dict[str, Any]:
    """The calls of `FullyAsyncTrainer.fit_step`, in its order, on a policy that verl builds by its name."""
    register_policy()
    policy = build_policy("pearl", deactivate_ratio=0.3, only_hybrid=False)
    controller = lending_controller(lambda: cycle(pearl, scratch))(None, None, 1, 0, policy=policy)
    context = DynamicScheduleContext(
        required_samples=8,
        trigger_parameter_sync_step=1,
        total_generated_samples=0,
        expected_samples=0,
        buffer_samples=0,
    )
    waits = []
    for step in range(1, STEPS + 1):
        asked = {"global_steps": step, "is_hybrid_active": controller.is_hybrid_active, "ctx": context}
        if policy.should_deactivate(**asked):
            waits.append(policy.deactivate_wait_samples(context))
            await controller.deactivate_hybrid_replicas(step)
        pearl.note("update")
        asked["is_hybrid_active"] = controller.is_hybrid_active
        if policy.should_activate_after_step(**asked):
            await controller.sync_hybrid_weights(global_steps=step)
            await controller.activate_hybrid_replicas(step)
            policy.request_rebalance(step, context)
        policy.update_after_step(step, context)
    controller._pearl.close()
    return {"waits": waits, "counts": [controller.activate_count, controller.deactivate_count]}


def main(weights: Path) -> dict[str, Any]:
    """Both ways in, one after the other over the same published weights."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with PearlDouble(weights) as pearl:
            run_v1(pearl, Path(folder))
            found["v1"] = pearl.events
        with PearlDouble(weights) as pearl:
            found["controller"] = asyncio.run(run_fully_async(pearl, Path(folder)))
            found["fully_async"] = pearl.events
            found["group"] = pearl.bodies["/v1/groups/register"]
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201 - its result
