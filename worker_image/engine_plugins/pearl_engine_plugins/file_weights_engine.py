"""The weight-transfer engine behind `file_weights`; imported by vLLM in its worker processes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from pearl_engine_plugins.file_weights import FileUpdate


@dataclass
class NoInit(WeightTransferInitInfo):
    """Files need no rendezvous."""


@dataclass
class FileUpdateInfo(FileUpdate, WeightTransferUpdateInfo):
    """The body of `/update_weights`, in the form vLLM parses."""


class FileWeightTransferEngine(WeightTransferEngine[NoInit, FileUpdateInfo]):
    """Loads whole checkpoints, file by file, tensor by tensor."""

    init_info_cls = NoInit
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """Take the layers apart; from here until `finish_weight_update` the model must not run."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Put the layers together again in the form their kernels want."""
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Parse and load; the base class would wait for an accelerator, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Stream every tensor of every file into the model's loader; peak memory is one tensor."""
        self.model.load_weights(_tensors(update_info.paths))

    def shutdown(self) -> None:
        """Nothing to close."""


def _tensors(paths: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)
