"""The engine tables that ship with the planner, found by `MODEL/HARDWARE`.

`tables/gpu.json`: fits of published estimates (its `source` says which). `tables/cpu.json`: measured by the script in
`measured_with`; hardware is `cpu`. Times in the files are seconds, so a table needs no conversion.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from typing import Any, Final

from pearl_planner.engine.model import (
    TRANSFER_BYTES_PER_SECOND,
    TRANSFER_FIXED_SECONDS,
    EngineTable,
    sane_table,
)

_TENSOR_PARALLEL: Final = re.compile(r"-TP(\d+)$", re.IGNORECASE)


class TableError(ValueError):
    """A table is missing or wrong; the message says which and what there is."""


def load_table(name: str) -> EngineTable:
    """The shipped table `MODEL/HARDWARE`, for example `Qwen/Qwen3-8B/H100-TP2` or `smollm2-135m/cpu`.

    The owner part of a model name is optional and letter case does not matter.

    Raises:
        TableError: there is no such table.
    """
    tables = shipped_tables()
    for key, table in tables.items():
        if _same(key, name):
            return table
    raise TableError(f"no engine table {name!r}; set spec.engine.table to one of: {', '.join(sorted(tables))}")


def find_table(model: str, hardware: str | None = None) -> EngineTable | None:
    """The table of a model by name; with unknown hardware the first one of that model, None without any."""
    for key, table in shipped_tables().items():
        owner_model, _, machine = key.rpartition("/")
        if _same(owner_model, model) and (hardware is None or machine.lower() == hardware.lower()):
            return table
    return None


def table_of_size(table: EngineTable, gpus: int, wanted: int) -> EngineTable:
    """Of `wanted` GPUs instead of `gpus`: the shipped one, else the same with its work shared among more or fewer.

    A table that is not as shipped (measured, perturbed) is known at its own size only.
    """
    model, _, machine = table.name.rpartition("/")
    found = _TENSOR_PARALLEL.search(machine)
    own = int(found[1]) if found is not None else gpus
    if own == wanted:
        return table
    known = found is not None and find_table(model, machine) == table
    shipped = find_table(model, _TENSOR_PARALLEL.sub(f"-TP{wanted}", machine)) if known else None
    return shipped or table.resized(wanted / own)


def split_table(table: EngineTable, gpus: int, *, prefill: int, decode: int) -> EngineTable | None:
    """Of decode workers with that of prefill workers, where either has not the `gpus` of `table`; None = all have."""
    if prefill == decode == gpus:
        return None
    return replace(table_of_size(table, gpus, decode), prefill_worker=table_of_size(table, gpus, prefill))


def shipped_tables() -> dict[str, EngineTable]:
    """Every shipped table by `MODEL/HARDWARE`."""
    found: dict[str, EngineTable] = {}
    folder = resources.files("pearl_planner") / "tables"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".json"):
            found.update(parse_tables(json.loads(file.read_text()), hardware=file.name.removesuffix(".json")))
    return found


def parse_tables(data: dict[str, Any], *, hardware: str) -> dict[str, EngineTable]:
    """Tables of one file: `{MODEL: constants}`, or `{"tables": {MODEL/HARDWARE: constants}, "source": …}`."""
    nested = data.get("tables")
    if isinstance(nested, dict):
        return {key: table_from_dict(value, name=key) for key, value in nested.items()}
    named = {f"{model}/{hardware}": value for model, value in data.items() if isinstance(value, dict)}
    return {key: table_from_dict(value, name=key) for key, value in named.items()}


def table_from_dict(data: dict[str, Any], *, name: str) -> EngineTable:
    """One table from its JSON form; unknown keys are allowed (they describe the measurement).

    Raises:
        TableError: a constant is missing or cannot be a step time.
    """
    decode, prefill = data.get("decode") or {}, data.get("prefill") or {}
    try:
        table = EngineTable(
            name=name,
            decode_fixed_seconds=float(decode["fixed_seconds"]),
            decode_per_sequence_seconds=float(decode["per_sequence_seconds"]),
            decode_per_context_token_seconds=float(decode["per_context_token_seconds"]),
            decode_per_root_sequence_seconds=float(decode.get("per_root_sequence_seconds", 0.0)),
            prefill_fixed_seconds=float(prefill["fixed_seconds"]),
            prefill_per_token_seconds=float(prefill["per_token_seconds"]),
            prefill_per_token_pair_seconds=float(prefill["per_token_pair_seconds"]),
            kv_bytes_per_token=_optional(data.get("kv_bytes_per_token")),
            kv_capacity_tokens=None if data.get("kv_capacity_tokens") is None else int(data["kv_capacity_tokens"]),
            transfer_bytes_per_second=float(data.get("transfer_bytes_per_second", TRANSFER_BYTES_PER_SECOND)),
            transfer_fixed_seconds=float(data.get("transfer_fixed_seconds", TRANSFER_FIXED_SECONDS)),
            measured_with=_how(data.get("measured_with", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"engine table {name!r}: {error} is missing or no number; see docs/models.md") from error
    if not sane_table(table):
        raise TableError(f"engine table {name!r}: step times must be finite and positive; measure it again")
    return table


def _how(measured: Any) -> str:
    """One line on the measurement; its points and errors stay in the file."""
    if isinstance(measured, dict):
        return ", ".join(str(measured[key]) for key in ("script", "engine", "processor") if key in measured)
    return str(measured)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _same(key: str, name: str) -> bool:
    """Equal without letter case and without the owner of the model."""
    mine, theirs = key.lower().split("/"), name.lower().split("/")
    shorter = min(len(mine), len(theirs))
    return shorter > 0 and mine[-shorter:] == theirs[-shorter:] and abs(len(mine) - len(theirs)) <= 1
