"""Rules over several fields of a custom resource, as CEL that the API server runs on every write.

A rule says what is wrong *and what to change*, with the numbers of the object where CEL can compute them
(`message_expression`; `message` is what it falls back to). Rules over one field (bounds, enums) are in the models.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_NAME_LENGTH = 40
"""Of a PearlRollout: leaves room for `-w1023-99999` and `-pearl-gateway` within 63 characters."""

OWNED_ENGINE_FLAGS = (
    "--port",
    "--host",
    "--uds",
    "--model",
    "--served-model-name",
    "--tensor-parallel-size",
    "-tp",
    "--kv-transfer-config",
    "--middleware",
    "--max-model-len",
    "--api-key",
    "--enable-sleep-mode",
    "--enable-scale-out",
    "--weight-transfer-config",
    "--worker-cls",
    "--worker-extension-cls",
    "--config",
    "--headless",
)
"""Flags of `vllm serve` that the worker agent sets itself."""

UNSUPPORTED_ENGINE_FLAGS = (
    "--pipeline-parallel-size",
    "-pp",
    "--data-parallel-size",
    "-dp",
    "--nnodes",
    "--node-rank",
    "--enable-lora",
    "--lora-modules",
)
"""Flags for what v1alpha1 does not do: engines over several nodes, pipeline and data parallelism, LoRA."""

OWNED_ENGINE_ENV = (
    "PEARL_MODEL_URI",
    "PEARL_MODEL_NAME",
    "PEARL_POD_NAME",
    "PEARL_POD_UID",
    "PEARL_POD_IP",
    "PEARL_MAX_MODEL_LEN",
    "PEARL_TENSOR_PARALLEL",
    "PEARL_ENGINE_ARGS",
    "PEARL_WEIGHTS_SOURCE",
    "PEARL_ON_UPDATE",
    "PEARL_TOKENS_DIR",
    "PEARL_STATE_DIR",
    "PEARL_DRAIN_SECONDS",
    "PEARL_START_SECONDS",
    "PEARL_RECLAIM_SECONDS",
    "PEARL_LOAN_NAME",
    "PEARL_LOAN_NAMESPACE",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
)
"""Environment of the worker container that the operator or the agent sets."""

WEIGHTS_SCHEMES = ("file", "pvc", "http", "https")


ITEMS = "[]"
"""In a rule's path: every entry of the list."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL rule, attached to the value at `path` (field names from the root); `self` is that value."""

    path: tuple[str, ...]
    rule: str
    message: str
    message_expression: str | None = None
    field: str | None = None
    """Path below `path` that the error shall name, as `.a.b`."""

    def manifest(self) -> dict[str, str]:
        """As an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            entry["messageExpression"] = self.message_expression
        if self.field is not None:
            entry["fieldPath"] = self.field
        return entry


_SPEC = ("spec",)
_TP = "self.engine.tensorParallel"
_RESERVED = "self.capacity.reserved.gpus"
_ELASTIC_MIN = "self.capacity.elastic.minGpus"
_ELASTIC_MAX = "self.capacity.elastic.maxGpus"
_BORROWED = "self.capacity.borrowed.maxGpus"
_ALL_GPUS = f"{_RESERVED} + {_ELASTIC_MAX} + {_BORROWED}"
_STAGES = "self.engine.parallelism"
_PAIR = f"(has(self.engine.parallelism) ? self.engine.parallelism.prefill + self.engine.parallelism.decode : 2 * {_TP})"


def _quoted(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _say(template: str, *values: str) -> str:
    """A CEL expression that fills numbers (`%d`) and words (`%s`) into a sentence.

    Written with `format`, since the API server takes concatenations of `string(n)` for unboundedly expensive.
    """
    return f"'{template}'.format([{', '.join(values)}])"


def _multiple(value: str, field: str) -> Rule:
    """GPUs must fill whole workers; with unequal parallel sizes that cannot be said by one number."""
    return Rule(
        path=_SPEC,
        field=field,
        rule=f"has(self.engine.parallelism) || {value} % {_TP} == 0",
        message=f"spec{field} must be a multiple of spec.engine.tensorParallel",
        message_expression=_say(
            f"spec{field} (%d) must be a multiple of spec.engine.tensorParallel (%d): use %d or %d",
            *(value, _TP, f"{value} - {value} % {_TP}", f"{value} + {_TP} - {value} % {_TP}"),
        ),
    )


def _filling(value: str, field: str) -> Rule:
    """With a size per stage, the GPUs must at least fill prefill workers."""
    return Rule(
        path=_SPEC,
        field=field,
        rule=f"!has({_STAGES}) || {value} % {_STAGES}.prefill == 0",
        message=f"spec{field} must be a multiple of spec.engine.parallelism.prefill",
        message_expression=_say(
            f"spec{field} (%d) must be a multiple of spec.engine.parallelism.prefill (%d): use %d or %d",
            *(value, f"{_STAGES}.prefill", f"{value} - {value} % {_STAGES}.prefill"),
            f"{value} + {_STAGES}.prefill - {value} % {_STAGES}.prefill",
        ),
    )


def _flags(flags: tuple[str, ...], why: str) -> Rule:
    """Refuses flags in both spellings (`--a-b`, `--a_b`) and both forms (`--flag value`, `--flag=value`)."""
    names = "|".join(flag.lstrip("-").replace("-", "[-_]") for flag in flags)
    return Rule(
        path=(*_SPEC, "engine", "args", ITEMS),
        rule=f"!self.matches('^--?({names})(=.*)?$')",
        message=f"spec.engine.args contains a flag that {why}",
    )


_NAME_RULES = (
    Rule(
        path=(),
        rule=f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
        message=f"metadata.name must have at most {MAX_NAME_LENGTH} characters, so that pod and Service names fit",
        message_expression=_say(
            f"metadata.name has %d characters: use at most {MAX_NAME_LENGTH}, so that pod and Service names fit",
            "size(self.metadata.name)",
        ),
    ),
    Rule(
        path=(),
        rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="metadata.name becomes part of Service names: begin with a-z, then use a-z, 0-9 and '-', no dot",
    ),
)

_CAPACITY_RULES = (
    _multiple(_RESERVED, ".capacity.reserved.gpus"),
    _multiple(_ELASTIC_MIN, ".capacity.elastic.minGpus"),
    _multiple(_ELASTIC_MAX, ".capacity.elastic.maxGpus"),
    _filling(_RESERVED, ".capacity.reserved.gpus"),
    _filling(_ELASTIC_MIN, ".capacity.elastic.minGpus"),
    _filling(_ELASTIC_MAX, ".capacity.elastic.maxGpus"),
    Rule(
        path=_SPEC,
        field=".capacity.elastic.minGpus",
        rule=f"{_ELASTIC_MIN} <= {_ELASTIC_MAX}",
        message="spec.capacity.elastic.minGpus must not exceed maxGpus",
        message_expression=_say(
            "spec.capacity.elastic.minGpus (%d) must not exceed maxGpus (%d): lower minGpus or raise maxGpus",
            *(_ELASTIC_MIN, _ELASTIC_MAX),
        ),
    ),
    Rule(
        path=_SPEC,
        field=".capacity",
        rule=f"{_ALL_GPUS} >= {_TP}",
        message="spec.capacity is too small for one worker: raise reserved.gpus, elastic.maxGpus or borrowed.maxGpus",
        message_expression=_say(
            "spec.capacity allows %d GPUs in all, and one worker needs %d (spec.engine.tensorParallel): "
            "raise reserved.gpus, elastic.maxGpus or borrowed.maxGpus",
            *(_ALL_GPUS, _TP),
        ),
    ),
    Rule(
        path=_SPEC,
        field=".capacity.borrowed.trainerSelector",
        rule=(
            f"{_BORROWED} == 0 || "
            "(has(self.capacity.borrowed.trainerSelector) && size(self.capacity.borrowed.trainerSelector) > 0)"
        ),
        message=(
            "spec.capacity.borrowed.trainerSelector is required when borrowed.maxGpus > 0: "
            "name the labels of the trainer pods that may lend, or set maxGpus to 0"
        ),
    ),
)

_MODE_RULES = (
    Rule(
        path=_SPEC,
        field=".ratio",
        rule="!has(self.ratio) || self.mode != 'Colocated'",
        message="spec.ratio means nothing with spec.mode Colocated: remove it, or set mode to Auto or Disaggregated",
    ),
    Rule(
        path=_SPEC,
        field=".mode",
        rule=f"self.mode != 'Disaggregated' || {_ALL_GPUS} >= {_PAIR}",
        message="spec.mode Disaggregated needs GPUs for one prefill and one decode worker",
        message_expression=_say(
            "spec.mode Disaggregated needs a prefill and a decode worker, that is %d GPUs, "
            "but spec.capacity allows %d in all: raise it, or set mode to Auto",
            *(_PAIR, _ALL_GPUS),
        ),
    ),
    Rule(
        path=_SPEC,
        field=".engine.parallelism",
        rule="!has(self.engine.parallelism) || self.engine.parallelism.prefill <= self.engine.parallelism.decode",
        message="spec.engine.parallelism.prefill must not exceed decode",
        message_expression=_say(
            "spec.engine.parallelism.prefill (%d) must not exceed decode (%d): lower prefill or raise decode",
            *("self.engine.parallelism.prefill", "self.engine.parallelism.decode"),
        ),
    ),
    Rule(
        path=_SPEC,
        field=".engine.parallelism.decode",
        rule=f"!has({_STAGES}) || {_STAGES}.decode % {_STAGES}.prefill == 0",
        message="spec.engine.parallelism.decode must be a multiple of prefill",
        message_expression=_say(
            "spec.engine.parallelism.decode (%d) must be a multiple of prefill (%d), "
            "since each GPU that decodes takes the KV of a whole part of one that prefills: use %d or %d",
            *(f"{_STAGES}.decode", f"{_STAGES}.prefill"),
            f"{_STAGES}.decode - {_STAGES}.decode % {_STAGES}.prefill",
            f"{_STAGES}.decode + {_STAGES}.prefill - {_STAGES}.decode % {_STAGES}.prefill",
        ),
    ),
    Rule(
        path=_SPEC,
        field=".engine.tensorParallel",
        rule=f"!has({_STAGES}) || ({_TP} % {_STAGES}.prefill == 0 && {_STAGES}.decode % {_TP} == 0)",
        message="spec.engine.tensorParallel must be a multiple of parallelism.prefill and divide parallelism.decode",
        message_expression=_say(
            "spec.engine.tensorParallel (%d) is the size of colocated and borrowed workers, which serve beside both "
            "others: it must be a multiple of parallelism.prefill (%d) and divide parallelism.decode (%d); "
            "use one of the two",
            *(_TP, f"{_STAGES}.prefill", f"{_STAGES}.decode"),
        ),
    ),
    Rule(
        path=(*_SPEC, "policy", "hysteresis"),
        field=".ratioPercent",
        rule="self.ratioPercent <= self.modePercent",
        message=(
            "spec.policy.hysteresis.ratioPercent must not exceed modePercent: "
            "a change of mode costs more than a change of ratio, so it needs the higher threshold"
        ),
    ),
    Rule(
        path=(*_SPEC, "policy"),
        field=".inFlight",
        rule="type(self.inFlight) == int ? int(self.inFlight) >= 1 : string(self.inFlight) in ['Auto', 'Disabled']",
        message="spec.policy.inFlight must be Auto, Disabled or a whole number of at least 1",
    ),
)

_ENGINE_RULES = (
    _flags(OWNED_ENGINE_FLAGS, "the operator sets: remove it; model, image, sizes and lengths have their own fields"),
    _flags(UNSUPPORTED_ENGINE_FLAGS, "v1alpha1 does not support: remove it"),
    Rule(
        path=_SPEC,
        field=".engine.env",
        rule=f"!has(self.engine.env) || !self.engine.env.exists(k, k in {_quoted(OWNED_ENGINE_ENV)})",
        message="spec.engine.env sets a variable that the operator sets: remove it",
        message_expression=_say(
            "spec.engine.env sets %s, which the operator sets: remove it",
            f"self.engine.env.filter(k, k in {_quoted(OWNED_ENGINE_ENV)})[0]",
        ),
    ),
    Rule(
        path=(*_SPEC, "engine"),
        field=".gpuResource",
        rule="self.gpuResource.matches('^[a-z0-9.-]+/[A-Za-z0-9._-]+$')",
        message="spec.engine.gpuResource must be an extended resource with its domain, for example nvidia.com/gpu",
    ),
    Rule(
        path=(*_SPEC, "engine"),
        field=".gpuResource",
        rule="!self.gpuResource.contains('/mig-')",
        message="spec.engine.gpuResource names a MIG slice, which v1alpha1 does not support: use whole GPUs",
    ),
    Rule(
        path=(*_SPEC, "model"),
        field=".uri",
        rule=(
            "!self.uri.contains('://') || self.uri.startsWith('file:///') || "
            "self.uri.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$')"
        ),
        message=(
            "spec.model.uri must be an absolute path in the container, file:///path, pvc://claim/path, "
            "or a model name that vLLM resolves"
        ),
    ),
    Rule(
        path=(*_SPEC, "model"),
        field=".name",
        rule="self.name == oldSelf.name",
        message=(
            "spec.model.name cannot change, because trajectories of one model mean nothing to another: "
            "create a second PearlRollout; new weights of the same model come through spec.weights.source"
        ),
    ),
)

_WEIGHTS_RULES = (
    Rule(
        path=(*_SPEC, "weights"),
        field=".source",
        rule=f"!has(self.source) || self.source.matches('^({'|'.join(WEIGHTS_SCHEMES)})://.+')",
        message=(
            "spec.weights.source must begin with file://, pvc://, http:// or https://, for example file:///weights; "
            "mount an object store as a volume"
        ),
    ),
    Rule(
        path=(*_SPEC, "weights"),
        field=".rollout",
        rule="!has(self.rollout) || self.rollout != 'Rolling' || self.maxStaleness > 0",
        message=(
            "spec.weights.rollout Rolling lets workers differ by a version, which spec.weights.maxStaleness 0 forbids: "
            "set rollout to AllAtOnce (or leave it out), or maxStaleness to 1 or more"
        ),
    ),
)

ROLLOUT_RULES = (*_NAME_RULES, *_CAPACITY_RULES, *_MODE_RULES, *_ENGINE_RULES, *_WEIGHTS_RULES)

LOAN_RULES = (
    Rule(
        path=(),
        rule="size(self.metadata.name) <= 63",
        message="metadata.name, the trainer pod's, becomes a label value: name that pod with at most 63 characters",
    ),
    Rule(
        path=_SPEC,
        rule="self == oldSelf",
        message=(
            "spec of a GPULoan is what the trainer enrolled and cannot change: deregister the trainer "
            "(or delete the GPULoan) and register again"
        ),
    ),
)
