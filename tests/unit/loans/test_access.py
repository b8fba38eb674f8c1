"""Which way borrowers reach a trainer's GPUs, and the sentence for every way that they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.loan import LentClaim, LoanAccess
from pearl_api.rollout import BorrowAccess
from pearl_api.wire.loans import RegisterRequest
from pearl_operator.errors import NotFound, Refused
from pearl_operator.facts import loan_fact, rollout_fact
from pearl_operator.loans.access import explain
from pearl_operator.loans.borrowers import borrower_pod, loan_object
from pearl_operator.loans.devices import Claim, Device, Devices, claim_names, claim_of, look, uuids_of, with_uuids
from pearl_operator.loans.enrol import Enrolment, check, same
from pearl_operator.loans.identity import Caller
from pearl_operator.loans.problems import LoanProblem
from pearl_operator.loans.strategies import Access, Option, Question

if TYPE_CHECKING:
    from pearl_operator.kinds import Kind

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


ROLLOUT = rollout_fact(
    {
        "metadata": {"name": "swe", "namespace": "pearl", "uid": "rollout-uid"},
        "spec": {
            "model": {"name": "tiny", "uri": "/models/tiny"},
            "engine": {"image": "example/worker:1", "tensorParallel": 2},
            "capacity": {"reserved": {"gpus": 2}, "borrowed": {"maxGpus": 4, "trainerSelector": {}}},
        },
    }
)
HOLDER = {
    "metadata": {"name": "trainer-0", "namespace": "ml", "uid": "trainer-uid"},
    "spec": {"nodeName": "node-1", "containers": [{"name": "train"}]},
    "status": {"phase": "Running"},
}


def enrolled(devices: Devices, *gpus: str, **pod: Any) -> Enrolment:
    return check(
        RegisterRequest(rollout="swe", gpus=list(gpus)),
        caller=Caller("ml", "trainer-0", "trainer-uid", "node-1"),
        trainer=HOLDER | pod,
        rollout=ROLLOUT,
        loans=(),
        namespaces=("ml",),
        devices=devices,
    )


FOUR = cluster(claim(device(0, "a"), device(1, "b"), device(2, "c"), device(3, "c")))


def test_borrowers_name_the_requests_that_hold_their_gpus() -> None:
    made = enrolled(FOUR, "GPU-0", "GPU-1", "GPU-2", "GPU-3")
    body = loan_object(made)
    body["metadata"]["uid"] = "loan-uid"
    loan = loan_fact(body)
    assert loan is not None
    assert same(loan, made)

    def reaches(index: int) -> tuple[Any, Any, str]:
        spec = borrower_pod(loan, ROLLOUT, index=index, slot=1000 + index, hostname="host-1")["spec"]
        container = spec["containers"][0]
        visible = next(each["value"] for each in container["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES")
        assert set(container["resources"]) == {"claims"}
        return spec["resourceClaims"], container["resources"]["claims"], visible

    held = [{"name": "lent-0", "resourceClaimName": "gpus"}]
    asked = [{"name": "lent-0", "request": "a"}, {"name": "lent-0", "request": "b"}]
    assert reaches(0) == (held, asked, "void")
    assert reaches(1) == (held, [{"name": "lent-0", "request": "c"}], "void")


def test_a_trainer_that_holds_another_claim_now_is_another_enrolment() -> None:
    made = enrolled(FOUR, "GPU-0", "GPU-1")
    body = loan_object(made)
    body["metadata"]["uid"] = "loan-uid"
    loan = loan_fact(body)
    assert loan is not None
    other = cluster(claim(device(0, "x"), device(1, "x"), name="other"))
    assert not same(loan, enrolled(other, "GPU-0", "GPU-1"))


@pytest.mark.parametrize(
    ("gpus", "reason", "said"),
    [
        (["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4"], "TooManyGpus", "holds 4 by ResourceClaims"),
        (["GPU-0", "GPU-7"], "UnknownGpu", "`gpus` names GPU-7, in no ResourceClaim of the pod"),
        (["GPU-0", "gpu-0"], "TooManyGpus", "twice"),
    ],
)
def test_a_trainer_lends_no_gpu_that_its_claims_do_not_hold(gpus: list[str], reason: str, said: str) -> None:
    with pytest.raises(LoanProblem, match=said) as caught:
        enrolled(FOUR, *gpus)
    assert caught.value.reason == reason


class Api:
    """Answers as the API server does: objects by kind and name, and versions and rights that it lacks."""

    def __init__(self, objects: dict[tuple[str, str], dict[str, Any]], version: str = "v1") -> None:
        self.objects = objects
        self.version = version
        self.forbidden: set[str] = set()
        self.fields: list[Any] = []

    def _check(self, kind: Kind) -> None:
        if kind.plural in self.forbidden:
            raise Refused("forbidden")
        if kind.version != self.version:
            raise NotFound("no such version")

    async def list(self, kind: Kind, *, fields: dict[str, str] | None = None) -> list[dict[str, Any]]:
        self._check(kind)
        self.fields.append(fields)
        return [body for (plural, _), body in self.objects.items() if plural == kind.plural]

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        assert namespace == "ml"
        self._check(kind)
        return self.objects.get((kind.plural, name))


OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    ("deviceclasses", "gpu.example.com"): {"metadata": {"name": "gpu.example.com"}},
    ("resourceclaims", "gpus"): {
        "metadata": {"name": "gpus"},
        "status": {
            "allocation": {
                "devices": {"results": [{"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "request": "gpus"}]}
            }
        },
    },
    ("resourceslices", "node-1-x"): {
        "spec": {
            "driver": DRIVER,
            "pool": {"name": "node-1"},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}}],
        }
    },
}
NAMES_A_CLAIM = {
    "metadata": {"name": "trainer-0", "namespace": "ml"},
    "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "a", "resourceClaimName": "gpus"}]},
}


async def test_the_api_server_is_asked_for_the_pods_claims_and_its_nodes_slices_only() -> None:
    api: Any = Api(OBJECTS)
    seen = await look(api, NAMES_A_CLAIM)
    assert (seen.version, seen.classes, seen.count) == ("v1", ("gpu.example.com",), 1)
    assert seen.uuids == {"gpu-0"}
    assert api.fields == [None, {"spec.nodeName": "node-1"}]
    assert await look(api, HOLDER) == Devices(version="v1", classes=("gpu.example.com",))


async def test_what_cannot_be_read_is_unknown_and_no_reason_to_refuse_a_trainer() -> None:
    api: Any = Api(OBJECTS)
    api.forbidden = {"resourceclaims"}
    seen = await look(api, NAMES_A_CLAIM)
    assert (seen.claims, seen.count) == (None, None)
    assert enrolled(seen, "GPU-0", "GPU-1").access.chosen is LoanAccess.VISIBLE_DEVICES
    api.forbidden = {"deviceclasses"}
    seen = await look(api, NAMES_A_CLAIM)
    assert (seen.version, seen.classes, seen.claims) == (None, None, None)
    older: Any = Api(OBJECTS, version="v1beta2")
    assert (await look(older, HOLDER)).version == "v1beta2"
    none: Any = Api(OBJECTS, version="none")
    assert (await look(none, HOLDER)).version == ""
