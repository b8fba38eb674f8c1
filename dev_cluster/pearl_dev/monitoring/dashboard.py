"""The Grafana dashboard of one PearlRollout, `charts/pearl/files/dashboard.json`.

Its series carry the labels that the chart's monitors give them: `rollout_namespace` and `rollout`, and `namespace`.
"""

from __future__ import annotations

from typing import Final

from pearl_dev.monitoring.grafana import Draw, Panel, Query, Row, Variable, dashboard

_EVERY: Final = "$__rate_interval"


def text() -> str:
    """The dashboard as JSON."""
    variables = (
        Variable("namespace", "pearl_workers_serving", "rollout_namespace"),
        Variable("rollout", 'pearl_workers_serving{rollout_namespace="$namespace"}', "rollout"),
    )
    return dashboard("PEARL: one rollout", "pearl-rollout", variables, rows())


def rows() -> tuple[Row, ...]:
    """What people look for, in the order in which they do."""
    return (_shape(), _predictions(), _decisions(), _loans(), _gateway(), _workers(), _operator())


def _of(series: str, **labels: str) -> str:
    """Series of the chosen rollout; a value may begin with `!`, `~` or `!~` for another operator than `=`."""
    chosen = {"rollout_namespace": "$namespace", "rollout": "$rollout", **labels}
    return f"{series}{{{', '.join(_matcher(label, value) for label, value in chosen.items())}}}"


def _matcher(label: str, value: str) -> str:
    operator = next((each for each in ("!~", "!", "~") if value.startswith(each)), "")
    equals = {"": "=", "!": "!=", "~": "=~", "!~": "!~"}[operator]
    return f'{label}{equals}"{value.removeprefix(operator)}"'


def _by(how: str, label: str, expression: str) -> str:
    return f"{how} by ({label}) ({expression})" if label else f"{how}({expression})"


def _sum(series: str, by: str = "", **labels: str) -> str:
    return _by("sum", by, _of(series, **labels))


def _rate(counter: str, by: str = "") -> str:
    """Per second."""
    return _by("sum", by, f"rate({_of(counter)}[{_EVERY}])")


def _increase(counter: str, by: str = "", **labels: str) -> str:
    """Per step of the plot."""
    return _by("sum", by, f"increase({_of(counter, **labels)}[{_EVERY}])")


def _max(series: str) -> str:
    return f"max({_of(series)})"


def _quantile(share: float, histogram: str) -> Query:
    return Query(f"histogram_quantile({share:g}, {_rate(f'{histogram}_bucket', by='le')})", f"{share:.0%}")


def _shape() -> Row:
    colocated = _sum("pearl_workers_wanted", role="colocated")
    stages = _sum("pearl_workers_wanted", role="~prefill|decode")
    waiting = _of("pearl_condition_reason", type="CapacityAvailable", reason="!Sufficient")
    panels = (
        Panel(
            "Workers by role, ready and wanted",
            "Prefill and decode, or colocated; dashed is what the target says.",
            (
                Query(_sum("pearl_workers", by="role", state="ready"), "{{role}}"),
                Query(_sum("pearl_workers_wanted", by="role"), "{{role}} wanted", dashed=True),
            ),
        ),
        Panel(
            "Mode",
            "As the target says.",
            (Query(f"(({colocated} or vector(0)) > bool 0) + 2 * (({stages} or vector(0)) > bool 0)", "mode"),),
            draw=Draw.STATES,
            names={0: "no workers", 1: "Colocated", 2: "Disaggregated", 3: "Mixed"},
        ),
        Panel(
            "Workers by state",
            "Pending, starting, unready and failed ones hold or wait for GPUs and do not serve.",
            (Query(_sum("pearl_workers", by="state"), "{{state}}"),),
            draw=Draw.STACK,
        ),
        Panel(
            "Ready workers by where their GPUs come from",
            "Reserved and elastic ones are the rollout's, borrowed ones a trainer's.",
            (Query(_sum("pearl_workers", by="zone", state="ready"), "{{zone}}"),),
            draw=Draw.STACK,
        ),
        Panel(
            "Pending pods, and why they wait",
            "The reason of CapacityAvailable while it is not Sufficient; the condition's message names a pod.",
            (
                Query(f"{_sum('pearl_workers', state='pending')} or vector(0)", "pending"),
                Query(f"{waiting} == 1", "{{reason}}"),
            ),
        ),
        Panel(
            "Conditions",
            "The reason of each condition of the PearlRollout, as docs/reference/conditions.md explains it.",
            (Query(f"{_of('pearl_condition_reason')} == 1", "{{type}}: {{reason}}"),),
            draw=Draw.STATES,
            names={1: " "},
        ),
    )
    return Row("Shape", panels)


def _predictions() -> Row:
    opened, rest = _of("pearl_batch_open_seconds"), _of("pearl_predicted_rest_seconds")
    panels = (
        Panel(
            "Completion of the open batch",
            "How long it is open, and (dashed) how long it will have been when it is complete, as predicted then. "
            "Where the line ends at the height of the dashed one, the prediction was right.",
            (Query(opened, "open"), Query(f"{opened} + {rest}", "predicted", dashed=True)),
            unit="s",
        ),
        Panel(
            "Turns per second",
            "Finished ones, and what is predicted for the present shape.",
            (
                Query(_rate("pearl_gateway_turns_total"), "finished"),
                Query(_of("pearl_predicted_turns_per_second"), "predicted", dashed=True),
            ),
            unit="reqps",
        ),
        Panel(
            "Trajectories of the open batch",
            "Where finished meets wanted, the batch is whole.",
            (
                Query(_of("pearl_batch_trajectories", state="!wanted"), "{{state}}"),
                Query(_of("pearl_batch_trajectories", state="wanted"), "wanted", dashed=True),
            ),
        ),
        Panel(
            "Error of the engine table",
            "Measured over predicted step time; 1 = as the table says. Predictions are corrected by it.",
            (Query(f"max by (steps) ({_of('pearl_model_scale')})", "{{steps}} steps"),),
        ),
        Panel(
            "Age of the gateway's statistics",
            "What decisions rest on; beyond metrics.staleAfterSeconds nothing optional is decided.",
            (Query(_max("pearl_gateway_statistics_age_seconds"), "age"),),
            unit="s",
        ),
    )
    return Row("Predicted and actual", panels)


def _decisions() -> Row:
    panels = (
        Panel(
            "What was decided, and why not more",
            "Looks by the reason of their decision, as docs/reference/decision-reasons.md explains it.",
            (Query(_increase("pearl_decisions_total", by="reason"), "{{reason}}"),),
            draw=Draw.BARS,
        ),
        Panel(
            "Actions",
            "What was done to get to the target.",
            (Query(_increase("pearl_actions_total", by="action"), "{{action}}"),),
            draw=Draw.BARS,
        ),
        Panel("Target", "Its number grows with every new target.", (Query(_max("pearl_target_id"), "target"),)),
        Panel(
            "Duration of a look",
            "Observe, plan, act, report.",
            (_quantile(0.5, "pearl_look_seconds"), _quantile(0.95, "pearl_look_seconds")),
            unit="s",
        ),
        Panel(
            "Looks that failed",
            "By error; the operator's log has each.",
            (Query(_increase("pearl_look_failures_total", by="error"), "{{error}}"),),
            draw=Draw.BARS,
        ),
    )
    return Row("Decisions", panels)


def _loans() -> Row:
    seconds, count = (_rate(f"pearl_loan_phase_seconds_{part}", by="phase") for part in ("sum", "count"))
    panels = (
        Panel(
            "Loans by phase",
            "Serving ones carry turns; draining ones are being taken back.",
            (Query(_sum("pearl_loans", by="phase", phase="!~Deregistered|Lost"), "{{phase}}"),),
            draw=Draw.STACK,
        ),
        Panel(
            "GPUs borrowed",
            "Lent and not yet back, and those of them that serve.",
            (
                Query(_sum("pearl_loan_gpus", phase="~Granted|Waking|Serving|Draining"), "borrowed"),
                Query(_sum("pearl_loan_gpus", phase="Serving"), "serving"),
            ),
        ),
        Panel(
            "Duration of reclaims, and their deadline",
            "As trainers measured it; dashed is policy.deadlines.reclaimSeconds.",
            (
                _quantile(0.5, "pearl_loan_reclaim_seconds"),
                _quantile(0.95, "pearl_loan_reclaim_seconds"),
                Query(_max("pearl_reclaim_deadline_seconds"), "deadline", dashed=True),
            ),
            unit="s",
        ),
        Panel(
            "Answers to offers, and why not",
            "By reason; Granted is the good one.",
            (Query(_increase("pearl_loan_answers_total", by="reason"), "{{reason}}"),),
            draw=Draw.BARS,
        ),
        Panel(
            "GPUs that two may hold",
            "Reclaims without a free GPU at their deadline, those that had to kill an engine, and loans whose trainer "
            "has ended and whose borrowers may still hold GPUs.",
            (
                Query(_increase("pearl_loan_not_returned_total"), "not returned"),
                Query(_increase("pearl_loan_reclaim_seconds_count", killed="true"), "killed"),
                Query(_max("pearl_loan_overlaps"), "held after the trainer"),
            ),
        ),
        Panel(
            "Time in each phase",
            "Mean of what ended; Granted and Waking are what a loan costs before it serves.",
            (Query(f"{seconds} / {count}", "{{phase}}"),),
            unit="s",
        ),
    )
    return Row("Loans", panels)


def _gateway() -> Row:
    flight = _of("pearl_gateway_worker_in_flight")
    panels = (
        Panel(
            "Tokens per second",
            "Wasted ones were generated for nothing: they are in no trajectory, or in an aborted one.",
            tuple(
                Query(_rate(f"pearl_gateway_{kind}_tokens_total"), kind)
                for kind in ("generated", "prefilled", "wasted")
            ),
        ),
        Panel(
            "Live trajectories, queue included",
            "Queued ones wait for a worker; those in their environment need none.",
            (Query(_sum("pearl_gateway_live", by="state"), "{{state}}"),),
            draw=Draw.STACK,
        ),
        Panel(
            "Requests on a worker",
            "Mean and most, by role.",
            (
                Query(_by("avg", "role", flight), "{{role}}"),
                Query(_by("max", "role", flight), "{{role}}, most", dashed=True),
            ),
        ),
        Panel(
            "Resumes and hand-off failures",
            "Turns that went on elsewhere from their tokens, and those whose prompt was computed again.",
            (
                Query(_rate("pearl_gateway_resumes_total"), "resumed"),
                Query(_rate("pearl_gateway_handoff_failures_total"), "hand-off failed"),
                Query(_rate("pearl_gateway_mixed_versions_total"), "weights changed in a hand-off"),
            ),
            unit="reqps",
        ),
        Panel(
            "Degraded turns by cause",
            "Served colocated because one side was missing.",
            (Query(_rate("pearl_gateway_degraded_turns_by_cause_total", by="cause"), "{{cause}}"),),
            unit="reqps",
        ),
        Panel(
            "Where prompts were prefilled",
            "Handed off from a prefill worker, or by the decode worker itself.",
            (
                Query(_rate("pearl_gateway_handoffs_total"), "handed off"),
                Query(_rate("pearl_gateway_local_appends_total"), "by the decode worker"),
            ),
            unit="reqps",
        ),
        Panel(
            "Broken prefixes by cause",
            "Turns whose prompt does not go on from the trajectory's tokens.",
            (Query(_rate("pearl_gateway_prefix_broken_by_cause_total", by="cause"), "{{cause}}"),),
            unit="reqps",
        ),
        Panel(
            "Trajectories that ended",
            "Whole, or given up.",
            (
                Query(_rate("pearl_gateway_trajectories_finished_total"), "finished"),
                Query(_rate("pearl_gateway_trajectories_aborted_total"), "aborted"),
            ),
            unit="reqps",
        ),
        Panel(
            "What should never happen",
            "Turns lost to a bug, lines that could not be stored, processes that died.",
            (
                Query(_increase("pearl_gateway_lost_turns_total"), "lost turns"),
                Query(_increase("pearl_gateway_storage_errors_total"), "storage errors"),
                Query(_increase("pearl_gateway_process_restarts_total"), "restarts"),
            ),
        ),
    )
    return Row("Gateway", panels)


def _workers() -> Row:
    panels = (
        Panel(
            "Weight versions",
            "Oldest and newest that is loaded, and (dashed) what the manifest wants.",
            (
                Query(f"min({_of('pearl_worker_weight_version')})", "oldest"),
                Query(_max("pearl_worker_weight_version"), "newest"),
                Query(_max("pearl_worker_wanted_version"), "wanted", dashed=True),
            ),
        ),
        Panel(
            "What changes take",
            "Longest of the workers' last starts, wake-ups and weight updates, and longest kill.",
            tuple(
                Query(_max(f"pearl_worker_{name}_seconds"), name.replace("_", " "))
                for name in ("start", "wake", "weight_load", "kill")
            ),
            unit="s",
        ),
        Panel(
            "Engines started and killed",
            "By the agents.",
            (
                Query(_increase("pearl_worker_engine_starts_total"), "started"),
                Query(_increase("pearl_worker_engine_kills_total"), "killed"),
            ),
            draw=Draw.BARS,
        ),
    )
    return Row("Workers", panels)


def _operator() -> Row:
    here = '{namespace="$namespace"}'
    calls = _by("sum", "to, le", f"rate(pearl_call_seconds_bucket{here}[{_EVERY}])")
    failed = f'increase(pearl_call_seconds_count{{namespace="$namespace", answer!~"2.."}}[{_EVERY}])'
    refused = f"increase(pearl_loan_calls_refused_total{here}[{_EVERY}])"
    panels = (
        Panel(
            "Lease",
            "How long the operator may still write; 0 = no operator decides.",
            (Query(f"max(pearl_lease_remaining_seconds{here})", "remaining"),),
            unit="s",
        ),
        Panel(
            "Age of the last watch event",
            "The operator's own Lease makes one every few seconds.",
            (Query(f"min(pearl_watch_age_seconds{here})", "age"),),
            unit="s",
        ),
        Panel(
            "Duration of calls",
            "To API server, gateways, worker agents and Prometheus, 95 %.",
            (Query(f"histogram_quantile(0.95, {calls})", "{{to}}"),),
            unit="s",
        ),
        Panel(
            "Calls without a good answer",
            "By receiver and HTTP status, `none` = no answer. 404 and 409 of the API server are usual.",
            (Query(_by("sum", "to, answer", failed), "{{to}}: {{answer}}"),),
            draw=Draw.BARS,
        ),
        Panel(
            "Calls of the loan API refused",
            "By reason.",
            (Query(_by("sum", "reason", refused), "{{reason}}"),),
            draw=Draw.BARS,
        ),
    )
    return Row("The namespace's operator", panels)
