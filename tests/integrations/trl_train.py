"""GRPO by TRL on a CPU, its completions generated from published weights while the GPUs are lent. Prints JSON.

    python trl_train.py MODEL WEIGHTS STEPS SCRATCH        # or by torchrun: all ranks use the double of rank 0

Runs in an environment with TRL and torch (see `conftest`). The worker is Hugging Face's own `generate`, in a thread,
on nothing but the files that the manifest names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import torch
from datasets import Dataset
from pearl_double import PearlDouble
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import StepIntervalCallback, WeightTransferProtocol

from pearl_trainer import PearlClient
from pearl_trainer.integrations.trl import LendingCallback, LentRollout, PublishedWeights
from pearl_trainer.settings import Settings, from_env

WANTED = frozenset("abcdefghijklmnopqrstuvwxyz ")
"""The reward of a completion is the share of these characters in it."""


class Worker:
    """Generates with the newest published weights."""

    def __init__(self, model: str, weights: Path) -> None:
        self._lock = threading.Lock()
        self._weights = weights
        self._version = 0
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.versions: list[int] = []

    @torch.no_grad()
    def generate(self, prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._load()
            ids = torch.tensor([prompt])
            made = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=sampling["max_tokens"],
                do_sample=True,
                temperature=sampling["temperature"],
                top_k=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            answer = made.sequences[0, len(prompt) :].tolist()
            logprobs = [
                logits[0].log_softmax(-1)[token].item() for logits, token in zip(made.logits, answer, strict=True)
            ]
            self.versions.append(self._version)
        content = [{"token_id": one, "logprob": logprob} for one, logprob in zip(answer, logprobs, strict=True)]
        spans = [{"version": self._version, "start": 0, "end": len(answer)}]
        choice = {"token_ids": answer, "logprobs": {"content": content}, "finish_reason": "length"}
        return {"choices": [{**choice, "weight_versions": spans}]}

    def _load(self) -> None:
        manifest = json.loads((self._weights / "manifest.json").read_text())
        if manifest["version"] != self._version:
            self._version = manifest["version"]
            self._model = AutoModelForCausalLM.from_pretrained(self._weights / manifest["uri"], dtype=torch.float32)


def train(model: str, url: str, steps: int, scratch: Path) -> dict[str, Any]:
    """One run of this rank; what it saw."""
    rewards: list[float] = []

    def reward(completions: list[str], weight_version: list[int], **_: Any) -> list[float]:
        assert len(set(weight_version)) == 1, "completions of one batch come from one version here"
        found = [sum(one in WANTED for one in text) / max(len(text), 1) for text in completions]
        rewards.append(sum(found) / len(found))
        return found

    config = GRPOConfig(
        output_dir=str(scratch),
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=12,
        learning_rate=1e-2,
        temperature=1.0,
        beta=0.0,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        bf16=False,
        dataloader_pin_memory=False,
    )
    settings = replace(
        from_env(), operator_url=url, token_file=str(scratch / "token"), visible_devices="GPU-a", weights_source=None
    )
    rollout = LentRollout(PearlClient(settings), rollout="math")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["say it: ", "some more: ", "a word, please: ", "and on "]}),
        rollout_func=rollout,
    )
    training_step = trainer.training_step

    def noted(*args: Any, **kwargs: Any) -> Any:
        loss = training_step(*args, **kwargs)
        httpx2.post(f"{url}/note", json={"what": "update"}, trust_env=False)
        return loss

    trainer.training_step = noted
    trainer.train()
    assert rollout.loan is not None
    return {"rewards": rewards, "idle": rollout.loan.usage.idle_fraction}


def lead(model: str, weights: Path, steps: int, scratch: Path) -> dict[str, Any]:
    """Rank 0: PEARL and the worker, beside its own training."""
    worker = Worker(model, weights)
    (scratch / "token").write_text("projected")
    with PearlDouble(weights, worker.generate) as pearl:
        (scratch / "url.new").write_text(pearl.url)
        (scratch / "url.new").rename(scratch / "url")
        found = train(model, pearl.url, steps, scratch)
    told = {"events": pearl.events, "batches": pearl.batches, "finished": pearl.finished}
    return {**found, **told, "versions": sorted(set(worker.versions))}


def follow(model: str, steps: int, scratch: Path) -> None:
    """Any other rank."""
    while not (scratch / "url").exists():
        time.sleep(0.1)
    train(model, (scratch / "url").read_text(), steps, scratch)


def asynchronous(model: str, weights: Path, scratch: Path) -> dict[str, Any]:
    """What `AsyncGRPOTrainer` does with callbacks and weight transfer, in its order; it trains only on a GPU."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with PearlDouble(weights) as pearl:
        settings = Settings(operator_url=pearl.url, token_file=str(scratch / "token"), visible_devices="GPU-a")
        loan = PearlClient(settings).register(rollout="math", lend=False)
        transfer = PublishedWeights(loan)

        def sync() -> None:
            transfer.pause()
            transfer.send_weights((name, parameter) for name, parameter in policy.named_parameters())
            transfer.resume()
            pearl.note(f"sync {loan.published_version()}")

        callbacks = [StepIntervalCallback(sync, 1), LendingCallback(loan)]
        handler = CallbackHandler(callbacks, policy, None, None, None)
        arguments, control = GRPOConfig(output_dir=str(scratch), use_cpu=True, bf16=False), TrainerControl()
        state = TrainerState(global_step=1)
        handler.on_train_begin(arguments, state, control)
        for _ in range(2):
            handler.on_step_begin(arguments, state, control)
            pearl.note("update")
            handler.on_step_end(arguments, state, control)
        handler.on_train_end(arguments, state, control)
        loaded = load_file(next((weights / str(loan.published_version())).glob("*.safetensors")))
    wanted = {name for name in vars(WeightTransferProtocol) if not name.startswith("_")}
    return {
        "events": pearl.events,
        "lacks": sorted(wanted - set(dir(transfer))),
        "equal": all(torch.equal(loaded[name], parameter) for name, parameter in policy.named_parameters()),
    }


def main(model: str, weights: Path, steps: int, scratch: Path) -> None:
    """Both trainers on one rank; the synchronous one on several."""
    if int(os.environ.get("RANK", "0")) > 0:
        follow(model, steps, scratch)
        return
    found = lead(model, weights, steps, scratch)
    if "RANK" not in os.environ:
        found["asynchronous"] = asynchronous(model, weights, scratch)
    print(json.dumps(found))  # noqa: T201 - its result


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
