"""Access to a trainer's GPUs on a real cluster: ResourceClaims, a DRA driver with fake GPUs, the scheduler itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from loan_scene import rollout, trainer

from pearl_trainer import Rejected

if TYPE_CHECKING:
    from loan_scene import Scene

pytestmark = pytest.mark.cluster

CLASS = "gpu.example.com"
BORROWER = "trainer-0-borrower-0"


def request(name: str, *, uuid: str | None = None) -> dict[str, Any]:
    """One GPU, or the one of this UUID."""
    exactly: dict[str, Any] = {"deviceClassName": CLASS, "count": 1}
    if uuid is not None:
        exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{CLASS}"].uuid == "{uuid}"'}}]
    return {"name": name, "exactly": exactly}


def claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    devices = {"devices": {"requests": list(requests)}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": devices}


def template(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {**claim(name), "kind": "ResourceClaimTemplate", "spec": {"spec": claim(name, *requests)["spec"]}}


def uuids(scene: Scene, name: str) -> list[str]:
    """UUIDs of the devices that a ResourceClaim was given, as its driver publishes them."""
    results = scene.get("resourceclaim", name)["status"]["allocation"]["devices"]["results"]
    slices = scene.cluster.get("resourceslices")["items"]
    known = {
        (each["spec"]["pool"]["name"], device["name"]): device["attributes"]["uuid"]["string"]
        for each in slices
        for device in each["spec"]["devices"]
    }
    return [known[result["pool"], result["device"]] for result in results]


def as_nvml(published: list[str]) -> str:
    """The same UUIDs as NVML would write them in the trainer."""
    return ",".join(uuid.replace("gpu-", "GPU-", 1) for uuid in published)


def devices(scene: Scene, pod: str) -> set[str]:
    """What the driver told a container about its devices."""
    lines = scene.kubectl("exec", pod, "--", "env").splitlines()
    return {line for line in lines if line.startswith("GPU_DEVICE_")}


def explained(scene: Scene) -> dict[str, dict[str, Any]]:
    """What doctor would print: every strategy, without enrolling."""
    with scene.client():  # writes the pod's token
        headers = {"Authorization": f"Bearer {(scene.folder / 'token').read_text()}"}
    answer = httpx2.post(f"{scene.url}/v1/loans/access", json={"rollout": "swe"}, headers=headers, timeout=10)
    assert answer.status_code == 200, answer.text
    return {option["access"]: option for option in answer.json()["options"]}


def gone(scene: Scene, kind: str, name: str) -> bool:
    return name not in {item["metadata"]["name"] for item in scene.get(kind)["items"]}


def test_trainer_and_borrower_share_a_claim_and_nobody_else_gets_the_gpu(scene: Scene) -> None:
    scene.apply(claim("gpus", request("one")))
    scene.apply(rollout("swe"))
    scene.apply(trainer({"app": "trainer"}, claim={"resourceClaimName": "gpus"}))
    scene.start_operator()
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    (uuid,) = uuids(scene, "gpus")
    options = explained(scene)
    assert options["SharedClaim"]["chosen"], options
    assert "name ResourceClaim gpus (1 GPUs), and the scheduler keeps" in options["SharedClaim"]["message"]
    scene.apply(claim("rival", request("one", uuid=uuid)))
    scene.apply(trainer({"app": "rival"}, name="rival", claim={"resourceClaimName": "rival"}))
    with scene.client(as_nvml([uuid])) as pearl:
        loan = pearl.register(rollout="swe")
        scene.until("the borrower serves", lambda: loan.lent and scene.ready(BORROWER))
        borrower = scene.get("pod", BORROWER)["spec"]
        assert borrower["resourceClaims"] == [{"name": "lent-0", "resourceClaimName": "gpus"}]
        assert borrower["nodeName"] == scene.get("pod", "trainer-0")["spec"]["nodeName"]
        seen = devices(scene, "trainer-0")
        (device,) = scene.get("resourceclaim", "gpus")["status"]["allocation"]["devices"]["results"]
        assert device["device"] in {line.partition("=")[2] for line in seen}
        assert devices(scene, BORROWER) == seen
        users = scene.get("resourceclaim", "gpus")["status"]["reservedFor"]
        assert {user["name"] for user in users} == {"trainer-0", BORROWER}
        stored = scene.get("gpuloan", "trainer-0")
        assert stored["spec"]["access"] == "SharedClaim"
        assert [option["chosen"] for option in stored["status"]["access"]] == [True, False]
        rival = scene.get("pod", "rival")["status"]
        assert rival["phase"] == "Pending"
        assert {each["type"]: each.get("reason") for each in rival["conditions"]}["PodScheduled"] == "Unschedulable"

        scene.kill_operator()
        scene.kubectl("delete", "pod", "trainer-0", "--wait=true")
        scene.until("the borrower is gone", lambda: gone(scene, "pods", BORROWER), seconds=60)
        scene.until("the GPU is the rival's", lambda: scene.ready("rival"), seconds=60)
        assert uuids(scene, "rival") == [uuid]
        assert "allocation" not in scene.get("resourceclaim", "gpus").get("status", {})


def test_a_claim_made_from_a_template_is_shared_request_by_request_and_goes_with_its_trainer(scene: Scene) -> None:
    scene.apply(template("pair", request("left"), request("right")))
    scene.apply(rollout("swe", parallel=2))
    scene.apply(trainer({"app": "trainer"}, claim={"resourceClaimTemplateName": "pair"}))
    scene.start_operator()
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    (made,) = (item["metadata"]["name"] for item in scene.get("resourceclaims")["items"])
    with scene.client(as_nvml(uuids(scene, made))) as pearl:
        loan = pearl.register(rollout="swe", lend=False)
        scene.until("the borrower runs", lambda: scene.get("pod", BORROWER)["status"]["phase"] == "Running")
        spec = scene.get("pod", BORROWER)["spec"]
        assert {each["resourceClaimName"] for each in spec["resourceClaims"]} == {made}
        asked = spec["containers"][0]["resources"]["claims"]
        assert {each["request"] for each in asked} == {"left", "right"}
        assert devices(scene, BORROWER) == devices(scene, "trainer-0")
        scene.kubectl("delete", "pod", "trainer-0", "--wait=true")
        scene.until("the borrower is gone", lambda: gone(scene, "pods", BORROWER), seconds=60)
        scene.until("the claim is gone", lambda: gone(scene, "resourceclaims", made), seconds=60)
        del loan


def test_a_trainer_without_a_claim_is_told_how_it_lends_and_why_not_otherwise(scene: Scene) -> None:
    scene.apply(rollout("swe"))
    scene.apply(trainer({"app": "trainer"}))
    scene.start_operator(PEARL_VISIBLE_DEVICES_NAMESPACES="elsewhere")
    scene.until("the trainer runs", lambda: scene.ready("trainer-0"))
    with scene.client() as pearl:
        with pytest.raises(Rejected, match=r"visibleDevices\.allowedNamespaces: add it") as caught:
            pearl.register(rollout="swe")
        assert caught.value.reason == "AccessNotSupported"
        assert "SharedClaim is not possible: pod trainer-0 names no ResourceClaim" in str(caught.value)
        scene.kill_operator()
        scene.start_operator()
        options = explained(scene)
        assert options["VisibleDevices"]["chosen"], options
        assert "for at most 5 s" in options["VisibleDevices"]["message"]  # reclaimSeconds of the scene's rollout
        assert options["SharedClaim"]["reason"] == "NoClaim"
        assert f"DeviceClasses here: {CLASS}" in options["SharedClaim"]["message"]
        loan = pearl.register(rollout="swe", lend=False)
        assert loan.registration is not None
        assert [(option.access, option.chosen) for option in loan.registration.access] == [
            ("SharedClaim", False),
            ("VisibleDevices", True),
        ]
        assert "resourceClaims" not in scene.get("pod", BORROWER)["spec"]
        loan.close()
        scene.apply(rollout("swe", access="SharedClaim"))

        def refused() -> bool:
            with pytest.raises(Rejected) as caught:
                pearl.register(rollout="swe", lend=False)
            return "access is SharedClaim, and SharedClaim is not possible: pod trainer-0 names" in str(caught.value)

        scene.until("the rollout's wish is obeyed", refused, seconds=30)
