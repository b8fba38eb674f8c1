"""Which way borrowers reach a trainer's GPUs, and the sentence for every way that they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pearl_api.loan import LentClaim, LoanAccess
from pearl_api.rollout import BorrowAccess
from pearl_operator.loans.access import explain
from pearl_operator.loans.devices import Claim, Device, Devices, claim_names, claim_of, uuids_of, with_uuids
from pearl_operator.loans.strategies import Access, Option, Question

DRIVER = "gpu.example.com"


def device(index: int, request: str = "gpus", **changes: Any) -> Device:
    made = Device(request=request, address=(DRIVER, "node-1", f"gpu-{index}"), uuid=f"gpu-{index}")
    return replace(made, **changes)


def claim(*devices: Device, name: str = "gpus", **changes: Any) -> Claim:
    return Claim(name=name, devices=devices, consumers=1, **changes)


def cluster(*claims: Claim, **changes: Any) -> Devices:
    named = tuple(each.name for each in claims)
    return replace(Devices(version="v1", classes=("gpu.example.com",), named=named, claims=claims), **changes)


def ask(devices: Devices, *gpus: str, wanted: BorrowAccess = BorrowAccess.AUTO, **changes: Any) -> Access:
    question = Question(
        namespace="ml",
        pod="trainer-0",
        wanted=wanted,
        gpus=gpus or None,
        parallel=1,
        devices=devices,
        visible_allowed=True,
        overlap_seconds=10,
    )
    return explain(replace(question, **changes))


def shared(access: Access) -> Option:
    return next(option for option in access.options if option.access is LoanAccess.SHARED_CLAIM)


def visible(access: Access) -> Option:
    return next(option for option in access.options if option.access is LoanAccess.VISIBLE_DEVICES)


def test_a_trainer_that_holds_a_claim_shares_it() -> None:
    answer = ask(cluster(claim(device(0))), "GPU-0")
    assert answer.chosen is LoanAccess.SHARED_CLAIM
    assert answer.claims == (LentClaim(name="gpus", request="gpus", gpus=["gpu-0"]),)
    assert shared(answer).reason == "Chosen"
    assert "pod trainer-0 and its borrowers name ResourceClaim gpus (1 GPUs)" in shared(answer).message
    assert visible(answer).possible
    assert visible(answer).message.endswith("for at most 10 s; not used: Auto prefers SharedClaim")


def test_a_trainer_of_the_device_plugin_is_told_how_it_could_share() -> None:
    answer = ask(cluster(), "GPU-a")
    assert answer.chosen is LoanAccess.VISIBLE_DEVICES
    assert answer.claims == ()
    assert shared(answer).reason == "NoClaim"
    assert "DeviceClasses here: gpu.example.com" in shared(answer).message
    assert "start it anew" in shared(answer).message


@pytest.mark.parametrize(
    ("devices", "reason", "said"),
    [
        (cluster(version="", classes=()), "ApiMissing", "serves resource.k8s.io not at all"),
        (cluster(version="v1beta1"), "ApiMissing", "only in v1beta1: SharedClaim needs v1, of Kubernetes 1.34"),
        (cluster(version=None, classes=None), "Unreadable", "list DeviceClasses"),
        (cluster(classes=()), "NoDeviceClass", "install a DRA driver"),
        (cluster(claim(device(0)), claims=None), "Unreadable", "sharedClaims.enabled"),
        (cluster(replace(claim(), devices=None)), "ClaimNotAllocated", "ResourceClaim gpus of pod trainer-0"),
        (cluster(claim(device(0)), named=("gpus", "gone")), "ClaimNotAllocated", "ResourceClaim gone of pod"),
        (cluster(claim(device(0), extended=True)), "ExtendedResource", "in spec.resourceClaims instead"),
        (cluster(claim(device(0, admin=True))), "AdminAccess", "ask without it"),
        (cluster(claim(device(0, divided=True))), "DeviceDivided", "ask for whole devices"),
        (cluster(replace(claim(device(0)), consumers=256)), "ClaimFull", "256 pods of at most 256"),
        (cluster(claim(device(7))), "GpusNotInClaim", "GPU-0 is in no ResourceClaim of pod trainer-0"),
        (cluster(claim(device(0), device(1))), "RequestTooWide", "one request per 1 GPUs"),
        (cluster(claim(device(0, uuid=None), device(1, uuid=None))), "GpusUnknown", "tell no `uuid` of the 2 devices"),
    ],
)
def test_why_a_claim_is_not_shared(devices: Devices, reason: str, said: str) -> None:
    answer = ask(devices, "GPU-0")
    assert (shared(answer).reason, shared(answer).possible) == (reason, False)
    assert said in shared(answer).message
    assert answer.chosen is LoanAccess.VISIBLE_DEVICES


def test_what_was_asked_for_is_never_replaced_by_the_other() -> None:
    holds = cluster(claim(device(0)))
    assert ask(cluster(), "GPU-0", wanted=BorrowAccess.SHARED_CLAIM).chosen is None
    assert ask(holds, "GPU-0", wanted=BorrowAccess.VISIBLE_DEVICES, visible_allowed=False).chosen is None
    answer = ask(holds, "GPU-0", wanted=BorrowAccess.VISIBLE_DEVICES)
    assert answer.chosen is LoanAccess.VISIBLE_DEVICES
    assert shared(answer).reason == "Possible"
    assert shared(answer).message.endswith("not used: spec.capacity.borrowed.access is VisibleDevices")
    assert answer.claims == ()


def test_a_namespace_without_leave_for_visible_devices_lends_by_claim_only() -> None:
    without = ask(cluster(), "GPU-0", visible_allowed=False)
    assert without.chosen is None
    assert visible(without).reason == "NamespaceNotAllowed"
    assert "visibleDevices.allowedNamespaces" in visible(without).message
    assert ask(cluster(claim(device(0))), "GPU-0", visible_allowed=False).chosen is LoanAccess.SHARED_CLAIM


def test_gpus_are_put_in_the_order_of_requests_so_that_no_borrower_sees_another_ones() -> None:
    pairs = claim(device(0, "a"), device(1, "a"), device(2, "b"), device(3, "b"))
    answer = ask(cluster(pairs), "GPU-3", "GPU-0", "GPU-2", "GPU-1", parallel=2)
    assert answer.chosen is LoanAccess.SHARED_CLAIM
    assert answer.gpus == ("GPU-0", "GPU-1", "GPU-3", "GPU-2")
    assert [(part.request, part.gpus) for part in answer.claims] == [
        ("a", ["gpu-0", "gpu-1"]),
        ("b", ["gpu-2", "gpu-3"]),
    ]


def test_half_a_request_cannot_be_lent() -> None:
    answer = ask(cluster(claim(device(0), device(1))), "GPU-0", "GPU-1", parallel=2)
    assert answer.chosen is LoanAccess.SHARED_CLAIM
    assert shared(ask(cluster(claim(device(0), device(1))), "GPU-1")).reason == "RequestTooWide"


def test_one_borrower_that_takes_everything_needs_no_uuids() -> None:
    nameless = cluster(claim(device(0, uuid=None), device(1, uuid=None)))
    answer = ask(nameless, "GPU-0", "GPU-1", parallel=2)
    assert answer.chosen is LoanAccess.SHARED_CLAIM
    assert answer.claims == (LentClaim(name="gpus", request="gpus"),)


def test_a_network_card_in_a_claim_is_no_gpu() -> None:
    card = claim(device(9, "nic", uuid=None), name="rdma")
    held = cluster(claim(device(0)), card)
    assert held.count == 1
    assert [part.name for part in ask(held, "GPU-0").claims] == ["gpus"]


def test_before_it_says_which_gpus_it_lends_all_that_it_holds_count() -> None:
    assert ask(cluster(claim(device(0)))).gpus == ("gpu-0",)
    assert ask(cluster(claim(device(0)))).chosen is LoanAccess.SHARED_CLAIM


POD = {
    "metadata": {"name": "trainer-0", "namespace": "ml"},
    "spec": {
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "gpus"},
            {"name": "b", "resourceClaimTemplateName": "each"},
            {"name": "c", "resourceClaimTemplateName": "not-made-yet"},
        ]
    },
    "status": {
        "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "trainer-0-b-x7"}, {"name": "c"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "trainer-0-extended"},
    },
}


def test_claims_of_a_pod_are_those_it_names_and_those_made_for_it() -> None:
    assert claim_names(POD) == ("gpus", "trainer-0-b-x7", "trainer-0-extended")
    assert claim_names({"metadata": {}, "spec": {}}) == ()


def test_a_claim_is_read_as_the_api_server_has_it() -> None:
    result = {"driver": DRIVER, "pool": "node-1", "device": "gpu-3", "request": "any/big"}
    body = {
        "metadata": {"name": "gpus", "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}},
        "status": {
            "allocation": {"devices": {"results": [result, {**result, "adminAccess": True, "shareID": "s-1"}]}},
            "reservedFor": [{"resource": "pods", "name": "trainer-0", "uid": "u"}],
        },
    }
    read = claim_of(body)
    assert read.devices is not None
    assert [each.request for each in read.devices] == ["any", "any"]
    assert [(each.admin, each.divided) for each in read.devices] == [(False, False), (True, True)]
    assert (read.consumers, read.extended) == (1, True)
    assert claim_of({"metadata": {"name": "new"}}).devices is None


def test_uuids_come_from_the_resource_slices() -> None:
    def published(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
        return {
            "spec": {
                "driver": DRIVER,
                "pool": {"name": "node-1"},
                "devices": [{"name": name, "attributes": attributes}],
            }
        }

    slices = [
        published("gpu-0", {"uuid": {"string": "GPU-a"}}),
        published("gpu-1", {f"{DRIVER}/uuid": {"string": "GPU-b"}}),
        published("nic-0", {"speed": {"int": 400}}),
        {"spec": {"driver": DRIVER, "pool": {"name": "node-1"}}},
    ]
    uuids = uuids_of(slices)
    assert uuids == {(DRIVER, "node-1", "gpu-0"): "GPU-a", (DRIVER, "node-1", "gpu-1"): "GPU-b"}
    known = with_uuids(claim(device(1), device(5)), uuids)
    assert [each.uuid for each in known.devices or ()] == ["GPU-b", None]
