"""TRL: lends the trainer's GPUs while completions are generated elsewhere.

`GRPOTrainer` generates between `on_step_begin` and the loss, so its hook is the rollout function:

    GRPOTrainer(…, rollout_func=LentRollout(pearl, rollout="math"))

`AsyncGRPOTrainer` waits for samples between two steps, so its hooks are callbacks, and weights leave it by a protocol:

    trainer = AsyncGRPOTrainer(…, weight_transfer=PublishedWeights(loan))
    trainer.add_callback(LendingCallback(loan))          # after its own, which sends the weights
"""

from __future__ import annotations

import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pearl_trainer.gateway import Turn
from pearl_trainer.integrations.cycle import Cycle

try:
    from transformers import TrainerCallback
except ImportError:  # the module can be looked at without it
    TrainerCallback = object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pearl_trainer.client import Loan, PearlClient
    from pearl_trainer.gateway import Generated

    Completions = dict[str, list[Any]]
    Rollout = Callable[[list[Any], Any], Completions]

MOST_THREADS = 64
SHARD_BYTES = 2 << 30


class Movable(Protocol):
    """What `offload` and `onload` move: a trainer with a model and, after its first step, an optimizer."""

    model: Any
    optimizer: Any
    accelerator: Any


class LentRollout:
    """A rollout function that lends the GPUs while `generate` runs; the weights of the step are published first.

    Args:
        client: `PearlClient.from_env()`.
        rollout: Name of the PearlRollout.
        generate: A rollout function of yours; None = `GatewayRollout(client)`.
        register: Further arguments of `client.register`, for example `gpus` or `group` and `members`.

    Raises:
        NotReturned: from within `train()`, where a GPU is not known to be free after the completions are there.
    """

    def __init__(self, client: PearlClient, *, rollout: str, generate: Rollout | None = None, **register: Any) -> None:
        self._client = client
        self._rollout = rollout
        self._generate = generate or GatewayRollout(client)
        self._register = register
        self._cycle: Cycle | None = None
        self._published: int | None = None

    @property
    def loan(self) -> Loan | None:
        """The loan; None before the first rollout."""
        return self._cycle.loan if self._cycle else None

    def __call__(self, prompts: list[Any], trainer: Any) -> Completions:
        """Completions of one generation batch, as TRL wants them."""
        cycle = self._cycle = self._cycle or self._connect(trainer)
        step = trainer.state.global_step
        # Step 0, too: workers may still serve what an earlier run has published.
        cycle.give(step if step != self._published else None)
        self._published = step
        try:
            return self._generate(prompts, trainer)
        finally:
            cycle.take()

    def _connect(self, trainer: Any) -> Cycle:
        several = trainer.accelerator.num_processes > 1
        loan = self._client.register(
            rollout=self._rollout,
            lend=False,
            offload=lambda: offload(trainer),
            onload=lambda: onload(trainer),
            barrier=trainer.accelerator.wait_for_everyone if several else None,
            **self._register,
        )
        cycle = Cycle(loan, save=lambda _: save(trainer), move=True)
        trainer.add_callback(_Closing(cycle))
        return cycle


class GatewayRollout:
    """Completions by the rollout's workers, through the gateway: one trajectory per completion, told as a batch.

    Args:
        client: `PearlClient.from_env()`.
        first_step: Number of the first batch; the gateway keeps those of earlier runs, so it must be above theirs.
            None = seconds since 1970, which is, as long as an update takes a second.
        sampling: vLLM's sampling parameters beside what the trainer's arguments say.
    """

    def __init__(self, client: PearlClient, *, first_step: int | None = None, **sampling: Any) -> None:
        self._client = client
        self._sampling = sampling
        self._run = uuid.uuid4().hex[:12]
        self._step = int(time.time()) if first_step is None else first_step

    def __call__(self, prompts: list[Any], trainer: Any) -> Completions:
        """TRL hands each prompt over as often as it wants completions of it, in a row."""
        prompt_ids = [tokens_of(prompt, trainer.processing_class) for prompt in prompts]
        train = trainer.model.training
        size = trainer.num_generations if train else trainer.num_generations_eval
        self._meet(trainer)
        step = self._begin(trainer, len(prompts), size) if train else None
        made = self._generate(prompt_ids, self._turns(len(prompts), size, step), _sampling(trainer) | self._sampling)
        self._step += 1
        if step is not None:
            self._end(trainer, step)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [list(one.token_ids) for one in made],
            "logprobs": [list(one.logprobs or ()) for one in made],
            "weight_version": [_version(one) for one in made],
        }

    def _meet(self, trainer: Any) -> None:
        """Only the main process has registered: the others learn from it where the gateway is and what is next."""
        if trainer.accelerator.num_processes == 1:
            return
        from accelerate.utils import broadcast_object_list  # noqa: PLC0415 - only trainers have it

        main = trainer.accelerator.is_main_process
        told = broadcast_object_list([self._step, self._client.gateway_address() if main else None])
        if not main:
            self._step, address = told
            self._client.use_gateway(*address)

    def _begin(self, trainer: Any, prompts: int, size: int) -> int:
        """Declares the batch of all processes on the main one, before any of them generates."""
        accelerator = trainer.accelerator
        if accelerator.is_main_process:
            groups = -(-prompts * accelerator.num_processes // size)
            self._client.batches.open(self._step, groups=groups, group_size=size)
        if accelerator.num_processes > 1:
            accelerator.wait_for_everyone()
        return self._step

    def _end(self, trainer: Any, step: int) -> None:
        if trainer.accelerator.num_processes > 1:
            trainer.accelerator.wait_for_everyone()
        if trainer.accelerator.is_main_process:
            self._client.batches.close(step)

    def _turns(self, count: int, size: int, step: int | None) -> list[Turn]:
        name = f"trl-{self._run}-{self._step}"
        traffic = "eval" if step is None else "train"
        return [
            Turn(f"{name}-{index}", 0, group=f"{name}-group-{index // size}", step=step, class_=traffic)
            for index in range(count)
        ]

    def _generate(self, prompts: list[list[int]], turns: list[Turn], sampling: dict[str, Any]) -> list[Generated]:
        def one(prompt: list[int], turn: Turn) -> Generated:
            made = self._client.generate(prompt, turn, **sampling)
            if turn.step is not None:
                self._client.batches.finish(turn.step, turn.trajectory, group=turn.group)
            return made

        with ThreadPoolExecutor(min(len(turns), MOST_THREADS), thread_name_prefix="pearl-trl") as pool:
            return list(pool.map(one, prompts, turns))


class LendingCallback(TrainerCallback):  # type: ignore[misc]
    """For `AsyncGRPOTrainer`: lends between its steps, while it waits for samples. Add it after construction."""

    def __init__(self, loan: Loan) -> None:
        self._cycle = Cycle(loan)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The first samples are waited for."""
        self._cycle.give()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A batch is there: returns when the GPUs are, too."""
        self._cycle.take()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The weights are out: TRL's own callback, added before this one, has sent them."""
        self._cycle.give()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The GPUs come back for good."""
        self._cycle.close()


class PublishedWeights:
    """`weight_transfer` of `AsyncGRPOTrainer`: files that workers pull instead of a broadcast that they must join."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan

    def init_weight_transfer(self) -> None:
        """Nothing to set up: there is no group of senders and receivers."""

    def pause(self) -> None:
        """Workers go on; what `onUpdate` says happens when each of them loads the version."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Writes the parameters and publishes them as the next version."""
        with tempfile.TemporaryDirectory() as folder:
            files = write_shards(iterator, Path(folder))
            version = self._loan.published_version()
            if version is not None:
                self._loan.publish_weights(version + 1, files, move=True)

    def resume(self) -> None:
        """See `pause`."""

    def destroy(self) -> None:
        """Nothing to release."""


class _Closing(TrainerCallback):  # type: ignore[misc]
    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._cycle.close()


def offload(trainer: Movable) -> None:
    """Moves the model and the optimizer's state to the CPU and gives cached memory back."""
    _move(trainer, "cpu")


def onload(trainer: Movable) -> None:
    """Moves them back to the device of the trainer."""
    _move(trainer, trainer.accelerator.device)


def _move(trainer: Movable, device: Any) -> None:
    import torch  # noqa: PLC0415 - only trainers have it

    trainer.model.to(device)
    states = trainer.optimizer.state.values() if trainer.optimizer is not None else ()
    for state in states:
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:  # scalars such as `step` stay on the CPU
                state[name] = value.to(device)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def save(trainer: Any) -> str | None:
    """The model as Hugging Face files in a temporary directory; None on ranks that only help to gather it."""
    state = trainer.accelerator.get_state_dict(trainer.model)
    if not trainer.accelerator.is_main_process:
        return None
    folder = tempfile.mkdtemp(prefix="pearl-weights-")
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder, state_dict=state)
    return folder


def write_shards(parameters: Iterator[tuple[str, Any]], folder: Path) -> list[Path]:
    """Writes parameters as safetensors files of about 2 GiB, so that a model never lies in memory twice."""
    from safetensors.torch import save_file  # noqa: PLC0415 - only trainers have it

    files: list[Path] = []
    shard: dict[str, Any] = {}
    size = 0

    def flush() -> None:
        path = folder / f"model-{len(files):05d}.safetensors"
        save_file(shard, path)
        files.append(path)

    for name, parameter in parameters:
        shard[name] = parameter.detach().to("cpu").contiguous()
        size += shard[name].numel() * shard[name].element_size()
        if size >= SHARD_BYTES:
            flush()
            shard, size = {}, 0
    if shard:
        flush()
    return files


def tokens_of(prompt: Any, tokenizer: Any) -> list[int]:
    """Ids of a prompt, plain or conversational."""
    if isinstance(prompt, str):
        return [int(one) for one in tokenizer(prompt)["input_ids"]]
    found = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True)
    ids = found["input_ids"] if hasattr(found, "keys") else found
    return [int(one) for one in ids]


def _sampling(trainer: Any) -> dict[str, Any]:
    arguments = trainer.args
    wanted = {
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k,
        "min_p": arguments.min_p,
        "repetition_penalty": arguments.repetition_penalty,
        "max_tokens": trainer.max_completion_length,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _version(made: Generated) -> int | None:
    """Newest version in the answer; None where a worker died before it told."""
    spans = made.raw["choices"][0].get("weight_versions") or []
    return max((span["version"] for span in spans if span["version"] is not None), default=None)
