"""What adapters do at the two points of a foreign loop, where something goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pearl_double import PearlDouble

from pearl_trainer import PearlClient
from pearl_trainer.integrations import Cycle
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pearl_trainer import Loan


@pytest.fixture
def pearl(tmp_path: Path) -> Iterator[PearlDouble]:
    (tmp_path / "published").mkdir()
    with PearlDouble(tmp_path / "published") as double:
        yield double


@pytest.fixture
def loan(pearl: PearlDouble, tmp_path: Path) -> Iterator[Loan]:
    (tmp_path / "token").write_text("projected")
    settings = Settings(operator_url=pearl.url, token_file=str(tmp_path / "token"), visible_devices="GPU-a")
    with PearlClient(settings) as client:
        yield client.register(rollout="math", lend=False)


def test_taking_and_giving_twice_is_once(pearl: PearlDouble, loan: Loan) -> None:
    cycle = Cycle(loan)
    for _ in range(2):
        cycle.take()
        cycle.give()
        cycle.give()
        cycle.take()
    cycle.close()
    assert pearl.events == [
        "register mine",
        *2 * ["lend lent", "reclaim mine"],
        "deregister mine",
    ]


def test_storage_that_fails_costs_a_version_and_never_the_training(
    pearl: PearlDouble, loan: Loan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def save(version: int) -> Path:
        folder = tmp_path / "saved"
        folder.mkdir()
        (folder / "model.safetensors").write_text(str(version))
        return folder

    cycle = Cycle(loan, save=save, move=True)
    assert cycle.publish(1) == 1
    published = pearl.weights.rename(tmp_path / "away")
    pearl.weights.mkdir()
    pearl.weights.joinpath(".draft-2").write_text("no directory can be made here")
    assert cycle.publish(2) is None
    assert "weights of step 2 could not be published" in caplog.text
    pearl.weights.joinpath(".draft-2").unlink()
    pearl.weights.rmdir()
    published.rename(pearl.weights)
    assert cycle.publish(3) == 3
    assert not (tmp_path / "saved").exists()


def test_ranks_that_write_nothing_publish_nothing(pearl: PearlDouble, loan: Loan) -> None:
    asked: list[int] = []
    cycle = Cycle(loan, save=asked.append)
    cycle.give(7)
    assert asked == [7]
    assert loan.published_version() == 0
    assert pearl.events[-1] == "lend lent"
    cycle.close()
