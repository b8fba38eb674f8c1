from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from pearl_double import PearlDouble

from pearl_trainer.blocking import Driver
from pearl_trainer.doctor import Wanted, examine
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0


def token(**claims: Any) -> str:
    pod = {"namespace": "ml", "pod": {"name": "trainer-0", "uid": "u"}}
    body = {"aud": ["pearl"], "exp": NOW + 600, "kubernetes.io": pod, **claims}
    return f"h.{base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip('=')}.s"


ACCESS = {
    "wanted": "Auto",
    "options": [
        {
            "access": "SharedClaim",
            "possible": False,
            "chosen": False,
            "reason": "NoClaim",
            "message": "the trainer pod names no ResourceClaim: ask for its GPUs by one",
        },
        {
            "access": "VisibleDevices",
            "possible": True,
            "chosen": True,
            "reason": "Chosen",
            "message": "ml is in allowedNamespaces",
        },
    ],
}


def answer(request: httpx2.Request) -> httpx2.Response:
    path = request.url.path
    if request.url.host == "gone":
        raise httpx2.ConnectError("connection refused")
    if path == "/v1/stats":
        return httpx2.Response(200 if request.headers["authorization"] == "Bearer client" else 401, json={})
    if path == "/v1/loans/access":
        known = json.loads(request.content)["rollout"] == "swe"
        problem = {"error": "RolloutNotFound", "message": "there is no PearlRollout nope: check --rollout"}
        return httpx2.Response(200, json=ACCESS) if known else httpx2.Response(404, json=problem)
    if path == "/v1/loans/register":
        known = {"gatewayUrl": "http://gw", "gatewayToken": "y", "weightsSource": None, "slots": 2, "token": "x"}
        times = {"reclaimSeconds": 10, "heartbeatSeconds": 1, "ttlSeconds": 8, "epoch": 4}
        urls = {"b-0": "http://agent", "b-1": None, "b-2": "http://gone"}
        agents = [{"pod": pod, "uid": pod, "url": url} for pod, url in urls.items()]
        return httpx2.Response(200, json={"namespace": "ml", "name": "trainer-0", "agents": agents, **known, **times})
    return httpx2.Response(200)


def lines(settings: Settings, wanted: Wanted | None = None) -> dict[str, str]:
    driver = Driver(httpx2.MockTransport(answer))
    try:
        found = examine(settings, driver, NOW, wanted or Wanted())
        return {finding.what: str(finding) for finding in found}
    finally:
        driver.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "token").write_text(token())
    (tmp_path / "weights").mkdir()
    return Settings(
        operator_url="http://operator:8090",
        token_file=str(tmp_path / "token"),
        visible_devices="GPU-a",
        weights_source=str(tmp_path / "weights"),
    )


def test_a_pod_that_has_everything(settings: Settings, tmp_path: Path) -> None:
    found = lines(settings)
    assert "pearl-trainer 0." in found.pop("versions")
    assert list(found.values()) == [
        "ok   identity: pod trainer-0 in namespace ml, token valid for 600 s",
        "ok   GPUs: GPU-a (from NVIDIA_VISIBLE_DEVICES)",
        f"ok   weights: version 0 at {tmp_path / 'weights'}",
        "ok   operator: http://operator:8090 answers (HTTP status 200)",
        "-    access: pass --rollout NAME to ask how borrowers reach the GPUs",
        "-    gateway: register() will tell its address",
        "-    agents: pass --enrol (with --rollout) to register and look at them",
    ]


def test_access_and_agents_are_explained_for_a_rollout(settings: Settings) -> None:
    found = lines(settings, Wanted("swe", enrol=True))
    assert found["access"] == "ok   access: Auto: VisibleDevices"
    assert found["access by SharedClaim"].startswith("-    access by SharedClaim: NoClaim. the trainer pod names no")
    assert found["access by VisibleDevices"].startswith("ok   ")
    assert found["enrolment"] == "ok   enrolment: ml/trainer-0: 2 borrower(s), loan epoch 4"
    assert found["agent b-0"].startswith("ok   ")
    assert found["agent b-1"].endswith("has no address yet: is the pod scheduled?")
    assert found["agent b-2"].startswith("FAIL agent b-2: http://gone does not answer")
    assert lines(settings, Wanted("nope"))["access"].startswith("FAIL access: there is no PearlRollout nope")


def test_what_is_missing_is_named_with_its_remedy(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(aud=["kubernetes"]))
    found = lines(replace(settings, operator_url="http://gone", gateway_url="http://gw", gateway_token_file=str(file)))
    assert "set `audience: pearl`" in found["identity"]
    assert found["operator"].startswith("FAIL operator: http://gone does not answer (ConnectError connection refused)")
    assert found["gateway token"].startswith("FAIL gateway token: the gateway refuses the token")
    for text, said in ((token(exp=NOW - 5), "expired 5 s ago"), ("not a token", "holds no ServiceAccount token")):
        file.write_text(text)
        assert said in lines(settings)["identity"]


def test_the_command_fails_without_an_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pearl_trainer.cli import main

    for name in ("PEARL_OPERATOR_URL", "PEARL_GATEWAY_URL", "NVIDIA_VISIBLE_DEVICES", "PEARL_WEIGHTS_SOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-a")
    assert main(["doctor"]) == 1
    assert "FAIL operator: PEARL_OPERATOR_URL is not set" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--enrol"])
    assert caught.value.code == 2


def test_a_pod_joins_its_group_until_it_is_told_to_stop(settings: Settings, tmp_path: Path) -> None:
    from pearl_trainer.cli import join

    with PearlDouble(tmp_path) as pearl:
        seen: list[list[str]] = []
        wanted = replace(settings, operator_url=pearl.url)
        assert join(wanted, "swe", "job-7", None, lambda: seen.append(list(pearl.events))) == 0
        body = pearl.bodies["/v1/loans/register"]
    assert seen == [["register mine"]]
    assert pearl.events == ["register mine", "deregister mine"]
    assert (body["group"], body["gpus"]) == ("job-7", ["GPU-a"])
