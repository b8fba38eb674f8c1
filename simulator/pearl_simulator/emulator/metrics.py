"""Prometheus metrics of one emulated engine: names, types, labels and buckets of vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from pearl_simulator.emulator.blocks import BlockPool
    from pearl_simulator.emulator.config import EngineConfig
    from pearl_simulator.emulator.scheduler import Scheduler, Step
    from pearl_simulator.emulator.sequence import Sequence

_ENGINE = ("engine", "model_name")
_COUNTERS: dict[str, dict[str, tuple[str, ...]]] = {
    # name → further label → its values
    "nixl_num_failed_transfers": {},
    "nixl_num_failed_notifications": {},
    "nixl_num_kv_expired_reqs": {},
    "nixl_num_notifications_after_expiry": {},
    "estimated_flops_per_gpu": {},
    "estimated_read_bytes_per_gpu": {},
    "estimated_write_bytes_per_gpu": {},
    "prefix_cache_queries": {},
    "prefix_cache_hits": {},
    "external_prefix_cache_queries": {},
    "external_prefix_cache_hits": {},
    "mm_cache_queries": {},
    "mm_cache_hits": {},
    "num_preemptions": {},
    "prompt_tokens": {},
    "prompt_tokens_by_source": {"source": ("local_compute", "local_cache_hit", "external_kv_transfer")},
    "prompt_tokens_cached": {},
    "prompt_tokens_cached_by_source": {"source": ("device", "host", "p2p", "disk", "external_unspecified")},
    "generation_tokens": {},
    "request_success": {"finished_reason": ("stop", "length", "abort", "error", "repetition")},
}
_GAUGES: dict[str, dict[str, tuple[str, ...]]] = {
    "num_requests_running": {},
    "num_requests_waiting": {},
    "num_requests_waiting_by_reason": {"reason": ("capacity", "deferred")},
    "num_requests_kv_fetch_by_stage": {"stage": ("waiting_to_start", "in_progress", "completed_waiting")},
    "engine_sleep_state": {"sleep_state": ("awake", "weights_offloaded", "discard_all")},
    "kv_cache_usage_perc": {},
}
_COUNT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    *(160, 640, 2560),
)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 50_000)
_HISTOGRAMS: dict[str, tuple[float, ...] | None] = {
    # name → buckets; None = 1, 2, 5, 10 … up to the longest context
    "nixl_xfer_time_seconds": _TRANSFER,
    "nixl_post_time_seconds": (0.001, *_TRANSFER),
    "nixl_bytes_transferred": tuple(2.0**power for power in range(11, 34, 2)),
    "nixl_num_descriptors": _DESCRIPTORS,
    "request_prompt_tokens": None,
    "request_generation_tokens": None,
    "iteration_tokens_total": (1, *(2.0**power for power in range(3, 15))),
    "request_max_num_generation_tokens": None,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": None,
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _BETWEEN,
    "request_time_per_output_token_seconds": _BETWEEN,
    "e2e_request_latency_seconds": _LONG,
    "request_queue_time_seconds": _LONG,
    "request_inference_time_seconds": _LONG,
    "request_prefill_time_seconds": _LONG,
    "request_decode_time_seconds": _LONG,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": None,
}
_OPERATION_BUCKETS = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)
_OPERATIONS = {"sleep_mode": "sleep_mode", "rl_weight_update": "rl_weight_update"}
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class EngineMetrics:
    """Metrics of one engine in a registry of their own."""

    def __init__(self, config: EngineConfig, blocks: int) -> None:
        self._registry = CollectorRegistry()
        self._values = ("0", config.model)
        self._kv_bytes = (config.table.kv_bytes_per_token if config.table else None) or 0.0
        self._preempted = 0
        self._plain: dict[str, Any] = {}
        transfer = config.kv_transfer
        for name, labels in _COUNTERS.items():
            if transfer or not name.startswith("nixl"):
                self._add(name, Counter, labels)
        for name, labels in _GAUGES.items():
            self._add(name, Gauge, labels)
        counts = tuple(float(edge) for edge in _COUNT if edge <= config.max_model_len)
        for name, buckets in _HISTOGRAMS.items():
            if transfer or not name.startswith("nixl"):
                self._add(name, Histogram, {}, buckets=buckets or counts)
        self._rejections()
        self._cache_info(config, blocks)
        self._operations = {
            kind: (
                Histogram(
                    f"vllm:{kind}_operation_duration_seconds",
                    f"Seconds of {kind} operations.",
                    ["operation"],
                    registry=self._registry,
                    buckets=_OPERATION_BUCKETS,
                ),
                Gauge(
                    f"vllm:{kind}_operations_in_flight",
                    f"Running {kind} operations.",
                    ["operation"],
                    registry=self._registry,
                ),
            )
            for kind in _OPERATIONS
        }
        self.sleep_state(0)

    def _add(self, name: str, kind: Any, labels: dict[str, tuple[str, ...]], **more: Any) -> None:
        family = kind(f"vllm:{name}", f"Emulated vllm:{name}.", [*_ENGINE, *labels], registry=self._registry, **more)
        if not labels:
            self._plain[name] = family.labels(*self._values)
        for values in labels.values():
            for value in values:
                self._plain[f"{name}/{value}"] = family.labels(*self._values, value)

    def _rejections(self) -> None:
        family = Counter(
            "vllm:admission_rejections",
            "Requests refused at the door; the emulator refuses none.",
            ["model_name", "reason"],
            registry=self._registry,
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            family.labels(self._values[1], reason)

    def _cache_info(self, config: EngineConfig, blocks: int) -> None:
        info = {
            "engine": "0",
            "block_size": str(config.block_tokens),
            "num_gpu_blocks": str(blocks),
            "enable_prefix_caching": str(config.prefix_caching),
            "kv_cache_size_tokens": str(config.kv_tokens),
        }
        family = Gauge("vllm:cache_config_info", "Size of the emulated KV cache.", list(info), registry=self._registry)
        family.labels(**info).set(1)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)

    def value(self, name: str) -> float:
        """Current value of a counter or gauge, `name` or `name/label value`."""
        return float(self._plain[name]._value.get())  # noqa: SLF001 - the client has no public reader

    # -- events -------------------------------------------------------------------------------------------------

    def admitted(self, sequence: Sequence) -> None:
        """A sequence looked into the prefix cache for the first time."""
        self._plain["prefix_cache_queries"].inc(len(sequence.prompt))
        self._plain["prefix_cache_hits"].inc(sequence.cached or 0)

    def external(self, asked: int, found: int) -> None:
        """Tokens looked for, and found, in another engine."""
        self._plain["external_prefix_cache_queries"].inc(asked)
        self._plain["external_prefix_cache_hits"].inc(found)

    def tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """A sequence got `count` more tokens."""
        self._plain["generation_tokens"].inc(count)
        if sequence.first_token is None:
            sequence.first_token = now
            self._plain["time_to_first_token_seconds"].observe(now - sequence.arrived)
            self._prompt_done(sequence)
        elif sequence.last_token is not None:
            self._plain["inter_token_latency_seconds"].observe(now - sequence.last_token)

    def _prompt_done(self, sequence: Sequence) -> None:
        total, cached, external = len(sequence.prompt), sequence.cached or 0, sequence.external
        self._plain["prompt_tokens"].inc(total)
        self._plain["prompt_tokens_by_source/local_compute"].inc(total - cached - external)
        self._plain["prompt_tokens_by_source/local_cache_hit"].inc(cached)
        self._plain["prompt_tokens_by_source/external_kv_transfer"].inc(external)
        self._plain["prompt_tokens_cached"].inc(cached + external)
        self._plain["prompt_tokens_cached_by_source/device"].inc(cached)
        self._plain["prompt_tokens_cached_by_source/p2p"].inc(external)

    def step(self, step: Step, scheduler: Scheduler) -> None:
        """A step is over."""
        self._plain["iteration_tokens_total"].observe(step.tokens)
        if scheduler.preempted > self._preempted:
            self._plain["num_preemptions"].inc(scheduler.preempted - self._preempted)
            self._preempted = scheduler.preempted

    def gauges(self, scheduler: Scheduler, pool: BlockPool) -> None:
        """What is inside now. As in vLLM nothing refreshes them while the engine neither steps nor changes."""
        waiting, fetching = len(scheduler.waiting), len(scheduler.fetching)
        self._plain["num_requests_running"].set(len(scheduler.running))
        self._plain["num_requests_waiting"].set(waiting + fetching)
        self._plain["num_requests_waiting_by_reason/capacity"].set(waiting)
        self._plain["num_requests_waiting_by_reason/deferred"].set(fetching)
        self._plain["num_requests_kv_fetch_by_stage/in_progress"].set(fetching)
        self._plain["kv_cache_usage_perc"].set(pool.used_share)

    def finished(self, sequence: Sequence, now: float) -> None:
        """A sequence ended."""
        plain, sampling = self._plain, sequence.sampling
        plain[f"request_success/{sequence.finish_reason}"].inc()
        plain["request_prompt_tokens"].observe(len(sequence.prompt))
        plain["request_generation_tokens"].observe(sequence.generated)
        plain["request_max_num_generation_tokens"].observe(sequence.generated)
        plain["request_params_n"].observe(sampling.samples)
        plain["request_params_max_tokens"].observe(sampling.max_tokens)
        plain["request_num_preemptions"].observe(sequence.preemptions)
        plain["request_prefill_kv_computed_tokens"].observe(
            len(sequence.prompt) - (sequence.cached or 0) - sequence.external
        )
        plain["e2e_request_latency_seconds"].observe(now - sequence.arrived)
        if sequence.admitted is None or sequence.first_token is None:
            return
        plain["request_queue_time_seconds"].observe(sequence.admitted - sequence.arrived)
        plain["request_prefill_time_seconds"].observe(sequence.first_token - sequence.admitted)
        plain["request_inference_time_seconds"].observe(now - sequence.admitted)
        plain["request_decode_time_seconds"].observe(now - sequence.first_token)
        between = max(1, sequence.generated - 1)
        plain["request_time_per_output_token_seconds"].observe((now - sequence.first_token) / between)

    def transferred(self, token_count: int, blocks: int, seconds: float) -> None:
        """KV came from another engine."""
        self._plain["nixl_xfer_time_seconds"].observe(seconds)
        self._plain["nixl_post_time_seconds"].observe(0.0)
        self._plain["nixl_bytes_transferred"].observe(token_count * self._kv_bytes)
        self._plain["nixl_num_descriptors"].observe(blocks)

    def failed_transfer(self) -> None:
        """KV did not come."""
        self._plain["nixl_num_failed_transfers"].inc()

    def lease_expired(self) -> None:
        """Nobody fetched the KV in time."""
        self._plain["nixl_num_kv_expired_reqs"].inc()

    def late_notification(self) -> None:
        """Somebody came for KV whose lease was over."""
        self._plain["nixl_num_notifications_after_expiry"].inc()

    def sleep_state(self, level: int) -> None:
        """0 awake, 1 weights offloaded, 2 everything discarded."""
        for at, name in enumerate(_SLEEP_STATES):
            self._plain[f"engine_sleep_state/{name}"].set(float(at == level))

    def operation(self, kind: str, name: str, seconds: float) -> None:
        """A `sleep_mode` or `rl_weight_update` operation is over."""
        duration, in_flight = self._operations[kind]
        duration.labels(name).observe(seconds)
        in_flight.labels(name).set(0)
