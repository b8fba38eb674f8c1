from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import httpx2

from pearl_trainer.blocking import Driver
from pearl_trainer.cli import examine
from pearl_trainer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOW = 1_800_000_000.0


def token(**claims: Any) -> str:
    pod = {"namespace": "ml", "pod": {"name": "trainer-0", "uid": "u"}}
    body = {"aud": ["pearl"], "exp": NOW + 600, "kubernetes.io": pod, **claims}
    return f"h.{base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip('=')}.s"


def lines(settings: Settings) -> list[str]:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "gone":
            raise httpx2.ConnectError("connection refused")
        return httpx2.Response(200)

    driver = Driver(httpx2.MockTransport(answer))
    try:
        return [str(finding) for finding in examine(settings, driver, NOW)]
    finally:
        driver.close()


def test_a_pod_that_has_everything(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token())
    (tmp_path / "weights").mkdir()
    settings = Settings(
        operator_url="http://operator:8090",
        token_file=str(tmp_path / "token"),
        visible_devices="GPU-a",
        weights_source=str(tmp_path / "weights"),
    )
    assert lines(settings) == [
        "ok   identity: pod ml/trainer-0, token valid for 600 s",
        "ok   GPUs: GPU-a",
        "ok   operator: http://operator:8090 answers (HTTP status 200)",
        "-    gateway: register() will tell its address",
        f"ok   weights: version 0 at {tmp_path / 'weights'}",
    ]


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(aud=["kubernetes"]))
    settings = Settings(operator_url="http://gone", token_file=str(file), visible_devices="GPU-a")
    found = lines(settings)
    assert "set `audience: pearl`" in found[0]
    assert found[2].startswith("FAIL operator: http://gone does not answer (ConnectError connection refused)")
    for text, said in ((token(exp=NOW - 5), "expired 5 s ago"), ("not a token", "holds no ServiceAccount token")):
        file.write_text(text)
        assert said in lines(settings)[0]


def test_the_command_fails_without_an_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pearl_trainer.cli import main

    for name in ("PEARL_OPERATOR_URL", "PEARL_GATEWAY_URL", "NVIDIA_VISIBLE_DEVICES", "PEARL_WEIGHTS_SOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-a")
    assert main(["doctor"]) == 1
    assert "FAIL operator: PEARL_OPERATOR_URL is not set" in capsys.readouterr().out
