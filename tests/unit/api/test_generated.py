"""Generated files, the command line that writes them, and the words they explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from pearl_api import names
from pearl_api.cli import main
from pearl_api.conditions import ConditionReason, ConditionType
from pearl_api.generated import crd_files, doc_files
from pearl_api.reasons import CONDITION_REASONS, CONDITIONS, DECISIONS, DecisionReason
from pearl_api.rules import MAX_NAME_LENGTH
from pearl_planner.types import Reason

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DNS_LABEL = 63


def test_check_passes_after_write_and_names_a_file_that_was_edited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(tmp_path)]
    assert main(["crds", "--check", *root]) == 1
    assert main(["crds", "--write", *root]) == 0
    assert main(["crds", "--check", *root]) == 0
    (tmp_path / "charts/pearl/crds/gpuloans.yaml").write_text("edited")
    capsys.readouterr()
    assert main(["crds", "--check", *root]) == 1
    assert capsys.readouterr().err == (
        "charts/pearl/crds/gpuloans.yaml differs from its source: run `pearl-api crds --write` and commit it\n"
    )


def test_the_chart_carries_the_same_crds() -> None:
    files = {str(path): text for path, text in crd_files().items()}
    assert files["crds/pearlrollouts.yaml"] == files["charts/pearl/crds/pearlrollouts.yaml"]
    assert files["crds/gpuloans.yaml"] == files["charts/pearl/crds/gpuloans.yaml"]


def test_every_reason_and_condition_is_explained() -> None:
    assert {str(reason) for reason in DecisionReason} == {str(reason) for reason in Reason}
    assert set(DECISIONS) == set(DecisionReason)
    assert set(CONDITIONS) == set(CONDITION_REASONS) == set(ConditionType)
    explained = {reason for reasons in CONDITION_REASONS.values() for reason in reasons}
    assert explained | {ConditionReason.UNKNOWN} == set(ConditionReason)


def test_reference_pages_list_fields_endpoints_and_labels() -> None:
    pages = {path.stem: text for path, text in doc_files().items() if path.suffix == ".md"}
    assert "| `spec.capacity.reserved.gpus` | integer | required | " in pages["pearlrollout"]
    assert "spec.ratio means nothing with spec.mode Colocated" in pages["pearlrollout"]
    assert "| GET  /v1/state " in pages["wire"]
    assert "| `pearl.dev/role` | `colocated`, `prefill` or `decode`" in pages["labels"]
    assert all(f"]({name}.md)" in pages["README"] for name in pages if name != "README")
    assert "| `PrometheusUnreachable` | Prometheus could not be queried. |" in pages["conditions"]


def test_names_of_the_longest_rollout_fit_into_labels_and_host_names() -> None:
    rollout = "a" * MAX_NAME_LENGTH
    made = [names.worker_pod(rollout, 1023, 999_999), names.gateway_name(rollout), names.gateway_secret(rollout)]
    assert max(len(name) for name in made) <= DNS_LABEL


def test_crds_have_one_version_no_conversion_and_no_replicas_for_an_autoscaler() -> None:
    for text in crd_files().values():
        spec = yaml.safe_load(text)["spec"]
        assert "conversion" not in spec
        (version,) = spec["versions"]
        assert version["subresources"] == {"status": {}}, "without `scale` no autoscaler takes it for a target"
