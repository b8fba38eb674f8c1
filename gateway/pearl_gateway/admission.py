"""Who is taken in: new trajectories while there is room, prompts that leave room for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_gateway.errors import bad_request, try_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.fleet import Fleet
    from pearl_gateway.identity import Identity
    from pearl_gateway.settings import Limits
    from pearl_gateway.tally import Tally

_RETRY_AFTER_SECONDS = 1.0


class Admission:
    """The bounds on new trajectories; those that run are never refused."""

    def __init__(self, fleet: Fleet, limits: Limits, tally: Tally, is_admitted: Callable[[str], bool]) -> None:
        self._fleet = fleet
        self._limits = limits
        self._tally = tally
        self._is_admitted = is_admitted
        self.kept_tokens = 0
        """In the logs of live trajectories, at the last sweep."""

    def check(self, identity: Identity) -> None:
        """Raise GatewayError (retryable) where a new trajectory cannot be taken now."""
        if identity.group is not None and self._is_admitted(identity.group):
            return
        if identity.traffic == "eval":
            if self._tally.eval_turns_in_flight >= self._limits.max_eval_turns:
                message = f"{self._limits.max_eval_turns} turns of evaluations are in flight (PEARL_MAX_EVAL_TURNS)"
                raise try_later("TooManyTurns", message, _RETRY_AFTER_SECONDS)
        elif self._tally.turns_in_flight - self._tally.eval_turns_in_flight >= self._limits.max_turns:
            message = f"{self._limits.max_turns} turns are in flight (PEARL_MAX_TURNS)"
            raise try_later("TooManyTurns", message, _RETRY_AFTER_SECONDS)
        if self.kept_tokens >= self._limits.max_kept_tokens:
            message = f"live trajectories hold {self.kept_tokens} tokens (PEARL_MAX_KEPT_TOKENS): end some"
            raise try_later("TooManyTokens", message, 5.0)
        if not self._fleet.candidates():
            raise try_later("NoWorker", "no worker is ready; trajectories that run already are queued", 2.0)

    def check_length(self, prompt: list[int], field: str) -> None:
        """Raise GatewayError for a prompt without tokens, or with too many; `field` is its name to the client."""
        if not prompt:
            raise bad_request(f"{field} is empty: send at least one token", param=field)
        longest = self._limits.max_model_len - 1
        if len(prompt) > longest:
            message = f"{field} has {len(prompt)} tokens; at most {longest} leave room for an answer"
            raise bad_request(message, "ContextLength", param=field)
