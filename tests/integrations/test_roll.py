"""ROLL is on no package index: its pipeline is written down here from `AgenticPipeline.run` at commit 005acba
(https://github.com/alibaba/ROLL), phase by phase, with the calls that touch GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pearl_double import PearlDouble

from pearl_trainer import ConfigurationError, PearlClient
from pearl_trainer.integrations import Cycle
from pearl_trainer.integrations.roll import lending_pipeline
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 2


class AgenticPipeline:
    """The order of ROLL's phases; what computes says that it was called."""

    partial_gpu_mode = False

    def __init__(self, pearl: PearlDouble) -> None:
        self.pearl = pearl

    def run(self) -> None:
        for global_step in range(STEPS):
            self.pearl.note("1 actor_train.offload_states")
            self.model_update(global_step)
            self.pearl.note("4 actor_infer.load_states")
            self.pearl.note("7 get_batch")
            batch = self.adjust_batch("batch", mode="copy")
            self.pearl.note(f"11 compute_log_probs of {batch}")
            self.pearl.note("14 train_step")

    def model_update(self, global_step: int) -> dict[str, Any]:
        self.pearl.note(f"3 model_update {global_step}")
        return {"time/model_update": 1.0}

    def adjust_batch(self, data: str, mode: str = "copy") -> str:
        return f"{mode} of {data}"


def test_its_pipeline_lends_from_the_model_update_until_the_batch_is_there(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("projected")
    (tmp_path / "published").mkdir()
    with PearlDouble(tmp_path / "published") as pearl:
        client = PearlClient(Settings(operator_url=pearl.url, token_file=str(tmp_path / "token")))

        def connect(pipeline: AgenticPipeline) -> Cycle:
            def save(version: int) -> Path:
                pipeline.pearl.note(f"save {version}")
                (tmp_path / "model.safetensors").write_text(str(version))
                return tmp_path / "model.safetensors"

            return Cycle(client.register_group(rollout="math", group="j", members=1, lend=False), save=save)

        lending_pipeline(AgenticPipeline, connect)(pearl).run()
        client.close()
    step = (
        *("4 actor_infer.load_states lent", "7 get_batch lent", "reclaim mine"),
        *("11 compute_log_probs of copy of batch mine", "14 train_step mine"),
    )
    assert pearl.events == [
        "register mine",
        *("1 actor_train.offload_states mine", "3 model_update 0 mine", "save 1 mine", "lend lent", *step),
        *("1 actor_train.offload_states mine", "3 model_update 1 mine", "save 2 mine", "lend lent", *step),
        "deregister mine",
    ]


def test_its_own_lending_and_pearls_exclude_each_other(tmp_path: Path) -> None:
    class Partial(AgenticPipeline):
        partial_gpu_mode = True

    def never(_pipeline: AgenticPipeline) -> Cycle:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="partial_gpu_mode is on"):
        lending_pipeline(Partial, never)(PearlDouble(tmp_path)).run()
