"""Engine series: how many workers they cover, how old they may be, and whether they fit the gateway's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fake_cluster import FakeGateway, FakePrometheus, quiet_stats

from pearl_api import names
from pearl_api.rollout import PrometheusSpec
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_operator.coverage import Agreement, Coverage, ScrapeTimes, quorum_age
from pearl_operator.errors import Unavailable
from pearl_operator.facts import PodFact
from pearl_operator.ports import EngineSamples, PodAddress, RolloutKey
from pearl_operator.sources import Samples, Sources
from pearl_planner.types import WorkerMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = RolloutKey("rl", "swe")
SERVER = PrometheusSpec(url="http://prometheus:9090")


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ([], None),
        ([5.0], 5.0),
        ([None], None),
        ([5.0, None], 5.0),
        ([5.0, None, None], None),
        ([40.0, 5.0, 20.0], 20.0),
        ([300.0, 5.0, 300.0, 300.0], 300.0),
    ],
)
def test_a_decision_needs_fresh_samples_of_half_of_the_workers(
    ages: Sequence[float | None], expected: float | None
) -> None:
    assert quorum_age(ages) == expected


def test_the_scrape_interval_is_learned_from_sample_times_and_one_that_failed_does_not_count() -> None:
    scrapes = ScrapeTimes()
    for read in range(0, 200, 5):  # more reads than scrapes
        last = read // 30 * 30 if not 90 <= read < 120 else 60
        scrapes.note({"rl/a": float(last), "rl/b": read // 30 * 30 + 7.0})
    assert scrapes.seconds == 30.0
    scrapes.note({})
    assert scrapes.seconds == 30.0


def test_one_scrape_does_not_tell_an_interval() -> None:
    scrapes = ScrapeTimes()
    scrapes.note({"rl/a": 1.0})
    scrapes.note({"rl/a": 31.0})
    assert scrapes.seconds is None


@pytest.mark.parametrize(
    ("engines", "gateway", "problem"),
    [
        (10.0, 9.0, None),
        (4.0, 2.0, None),  # few
        (10.0, 20.0, None),  # prompts that are prefilled elsewhere count twice
        (30.0, 9.0, "somebody else asks the workers"),
        (0.0, 12.0, "scrapes return nothing"),
        (0.0, 6.0, None),
    ],
)
def test_what_engines_have_and_the_gateway_did_not_send_is_told(
    engines: float, gateway: float, problem: str | None
) -> None:
    agreement = Agreement()
    for second in range(0, 120, 5):
        agreement.note(float(second), engines, gateway)
    assert agreement.problem is None, "not seen for long enough"
    agreement.note(120.0, engines, gateway)
    assert agreement.problem == problem if problem is None else problem in (agreement.problem or "")
    agreement.note(125.0, None, gateway)
    assert agreement.problem is None, "one side is silent"


def test_a_burst_between_two_scrapes_is_no_disagreement() -> None:
    agreement = Agreement()
    for second in range(0, 600, 5):
        agreement.note(float(second), 12.0 if second % 60 < 5 else 8.0, 8.0)
        assert agreement.problem is None


def pod(number: int, **changes: object) -> PodFact:
    made = PodFact(
        address=PodAddress("rl", f"swe-w{number}-0", f"uid-{number}", "10.0.0.1"),
        resource_version="1",
        rollout=KEY,
        component=names.COMPONENT_WORKER,
        zone=names.Zone.RESERVED,
        running=True,
        ready=True,
        created=0.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Scene:
    """A few workers whose series and gateway numbers are set by the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.gateway = Gateway()
        self.prometheus = FakePrometheus()
        self.sources = Sources(KEY, self.gateway, self.prometheus, Silent(), self.clock)  # type: ignore[arg-type]
        self.pods = [pod(number) for number in range(4)]

    async def look(self) -> Samples:
        return await self.sources.read(self.pods, (), SERVER)

    def scraped(self, ages: dict[int, float], running: float = 2.0) -> None:
        now = self.clock.now()
        by_pod = {f"rl/swe-w{number}-0": WorkerMetrics(running=running) for number in ages}
        at = {f"rl/swe-w{number}-0": now - age for number, age in ages.items()}
        self.prometheus.samples = EngineSamples(by_pod, at)


class Silent:
    """Agents that do not answer."""

    async def state(self, *_: object) -> None:
        raise Unavailable("no answer")


class Gateway(FakeGateway):
    """Sent so many requests to each of four workers."""

    def __init__(self) -> None:
        super().__init__(FakeKube(VirtualClock()))
        self.sent = 0

    async def stats(self, rollout: RolloutKey) -> object:  # type: ignore[override]
        workers = [
            {
                "uid": f"uid-{number}",
                "pod": "p",
                "role": "colocated",
                "acked_epoch": 0,
                "activity": "active",
                "ready": True,
                "in_flight": self.sent,
                "resident_tokens": 0,
            }
            for number in range(4)
        ]
        return quiet_stats(rollout.name, workers=workers)


@pytest.mark.looptime
async def test_a_lonely_fresh_worker_does_not_make_the_fleet_fresh() -> None:
    scene = Scene()
    scene.scraped({0: 3.0, 1: 90.0, 2: 90.0})
    found = await scene.look()
    assert found.coverage == Coverage(3, 4)
    assert found.engines_age == pytest.approx(90.0)


@pytest.mark.looptime
async def test_workers_that_do_not_serve_are_not_waited_for() -> None:
    scene = Scene()
    scene.pods = [
        pod(0),
        pod(1, ready=False),
        pod(2, deleting=True),
        pod(3, activity=names.Activity.DRAINING),
    ]
    scene.scraped({0: 3.0})
    found = await scene.look()
    assert (found.coverage, found.engines_age) == (Coverage(1, 1), pytest.approx(3.0))


@pytest.mark.looptime
async def test_series_of_a_former_pod_of_the_same_name_are_left_out() -> None:
    scene = Scene()
    scene.scraped({0: 60.0, 1: 5.0})
    scene.pods = [pod(0, created=scene.clock.now() - 30.0), pod(1)]
    found = await scene.look()
    assert found.engines is not None
    assert list(found.engines.by_pod) == ["rl/swe-w1-0"]
    assert found.coverage == Coverage(1, 2)


@pytest.mark.looptime
async def test_engines_with_requests_that_the_gateway_did_not_send_are_told_after_two_minutes() -> None:
    scene = Scene()
    found = await scene.look()
    for _ in range(26):
        scene.scraped(dict.fromkeys(range(4), 2.0), running=5.0)
        await scene.clock.sleep(5.0)
        found = await scene.look()
    assert found.disagreement is not None
    assert "have 20.0 requests, and the gateway sent them 0.0" in found.disagreement
    scene.gateway.sent = 5
    for _ in range(60):
        await scene.clock.sleep(5.0)
        found = await scene.look()
    assert found.disagreement is None
