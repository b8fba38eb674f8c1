"""What one reads after a run: a figure of reward, GPU and shape over time, and a page with it and the promises."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from matplotlib import pyplot as plt

from examples.common import gpu, page, plots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from examples.common.trainer_pod import Batch
    from examples.rl_loop.loop import Run

SAMPLES = 3


def write(run: Run, folder: Path) -> Path:
    """Writes `rl-loop.png`, `rl-loop.svg` and the page; returns the page."""
    drawn = figure(run)
    drawn.savefig(folder / "rl-loop.png", dpi=120, bbox_inches="tight")
    picture = plots.svg(drawn)
    (folder / "rl-loop.svg").write_text(picture)
    target = folder / "rl-loop.html"
    target.write_text(html(run, picture))
    return target


def figure(run: Run) -> Figure:
    """Three rows over one time axis."""
    drawn, (reward, use, shape) = plt.subplots(3, 1, figsize=(10, 7), sharex=True, height_ratios=(4, 1, 3))
    plots.reward(reward, run.frozen, run.steps)
    reward.set_title("GRPO with rollouts by PEARL")
    plots.gpu(use, gpu.spans(run.timeline.loans, run.steps))
    plots.shape(shape, run.timeline.of(run.fleet.name))
    drawn.subplots_adjust(hspace=0.35)
    return drawn


def html(run: Run, picture: str) -> str:
    """The page; `picture` is an `<svg>` element."""
    parts = [
        "<h2>Promises</h2>",
        page.promises(run.promises),
        picture,
        f"<p>{escape(gpu_use(run))}</p>",
        "<h2>What the policy plays</h2>",
        page.table(("before", "after"), zip(_samples(run.frozen), _samples(run.steps[-SAMPLES:]), strict=False)),
        "<p class=small>The model writes a digit and <code>;</code>, the game answers lower, higher or found.</p>",
        "<h2>Decisions of the operator and why</h2>",
        page.decisions(run.timeline.decisions),
    ]
    return page.document("A real RL loop with PEARL", parts)


def gpu_use(run: Run) -> str:
    """One sentence on what the trainer's GPU did from the first update's batch on."""
    if not run.steps:
        return "No update was made."
    first = run.steps[0]
    since = first.training[0] - first.reclaim_seconds - first.rollout_seconds
    shares = gpu.shares(gpu.spans(run.timeline.loans, run.steps), since)
    listed = ", ".join(f"{use} {share:.0%}" for use, share in shares.items())
    return f"The trainer's GPU from the first batch that was trained on: {listed}."


def _samples(batches: Sequence[Batch]) -> list[str]:
    return [f"<code>{escape(batch.sample)}</code>" for batch in batches[:SAMPLES]]
