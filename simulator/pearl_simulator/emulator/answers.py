"""Answer bodies of the three generation APIs, whole and streamed, field by field as vLLM writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator import tokenizer, tokens

if TYPE_CHECKING:
    from pearl_simulator.emulator.asked import Asked
    from pearl_simulator.emulator.sequence import Delta, Sequence

Json = dict[str, Any]


class Answer:
    """What the three APIs share; one object per request."""

    prefix = ""
    """Of request ids."""

    def __init__(self, asked: Asked, identity: Json, *, cached_details: bool) -> None:
        self.asked = asked
        self.name: str = identity["id"]
        self.model: str = identity["model"]
        self.created: int = identity["created"]
        self.fingerprint: str = identity["fingerprint"]
        self._cached_details = cached_details
        options = asked.body.get("stream_options") or {}
        self.final_usage = bool(options.get("include_usage"))
        self.usage_each_time = bool(self.final_usage and options.get("continuous_usage_stats"))
        self._shown: dict[int, int] = {}

    def whole(self, sequences: list[Sequence]) -> Json:
        """The body when everything has ended."""
        raise NotImplementedError

    def opening(self, _sequences: list[Sequence]) -> list[Json]:
        """Events before the first token."""
        return []

    def event(self, sequence: Sequence, delta: Delta) -> Json:
        """One event."""
        raise NotImplementedError

    def closing(self, sequences: list[Sequence]) -> Json | None:
        """The event with the usage, if it was asked for."""
        raise NotImplementedError

    def usage(self, sequences: list[Sequence], *, details: bool = True) -> Json:
        """Tokens of the request; the samples of one prompt share it."""
        prompts = {one.index // one.sampling.samples: one for one in sequences}
        prompt = sum(len(one.prompt) for one in prompts.values())
        answer = sum(one.generated for one in sequences)
        found: Json = {"prompt_tokens": prompt, "total_tokens": prompt + answer, "completion_tokens": answer}
        cached = {"cached_tokens": sequences[0].cached or 0} if self._cached_details else None
        if details:
            found |= {"prompt_tokens_details": cached, "completion_tokens_details": None}
        elif cached:
            found["prompt_tokens_details"] = cached
        return found

    def new_text(self, sequence: Sequence, delta: Delta) -> str:
        """Text that may be shown now: what could still become a stop string is held back."""
        text, shown = sequence.shown_text(), self._shown.get(sequence.index, 0)
        sampling = sequence.sampling
        end = len(text)
        if delta.finish_reason is None and sampling.stop and not sampling.include_stop:
            end = max(shown, end - max(map(len, sampling.stop)) + 1)
        self._shown[sequence.index] = end
        return text[shown:end]


def _name(token: int, *, as_id: bool) -> str:
    return f"token_id:{token}" if as_id else tokenizer.decode((token,))


class CompletionAnswer(Answer):
    """`/v1/completions`."""

    prefix = "cmpl-"

    def whole(self, sequences: list[Sequence]) -> Json:
        """See `Answer`."""
        return {
            "id": self.name,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(one) for one in sequences],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": self.usage(sequences),
            "kv_transfer_params": sequences[-1].kv_answer,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, sequence: Sequence) -> Json:
        body, text, ids = self.asked.body, sequence.shown_text(), bool(self.asked.body.get("return_token_ids"))
        if body.get("echo"):
            text = tokenizer.decode(sequence.prompt) + text
        return {
            "index": sequence.index,
            "text": text,
            "logprobs": self._logprobs(sequence, 0, sequence.generated),
            "finish_reason": sequence.finish_reason,
            "stop_reason": sequence.stop_reason,
            "token_ids": sequence.answer if ids else None,
            "prompt_logprobs": prompt_logprobs(sequence),
            "prompt_token_ids": sequence.prompt if ids else None,
            "routed_experts": None,
        }

    def _logprobs(self, sequence: Sequence, start: int, end: int) -> Json | None:
        if sequence.sampling.logprobs is None:
            return None
        as_id = bool(self.asked.body.get("return_tokens_as_token_ids"))
        scores = sequence.scores[start:end]
        names = [_name(score[0][0], as_id=as_id) for score in scores]
        # Without ids every name is one character.
        before = sum(len(_name(one[0][0], as_id=True)) for one in sequence.scores[:start]) if as_id else start
        offsets = [before + sum(map(len, names[:at])) for at in range(len(names))]
        return {
            "text_offset": offsets,
            "token_logprobs": [score[0][1] for score in scores],
            "tokens": names,
            "top_logprobs": [{_name(token, as_id=as_id): value for token, value in score} for score in scores],
        }

    def event(self, sequence: Sequence, delta: Delta) -> Json:
        """See `Answer`."""
        ids = bool(self.asked.body.get("return_token_ids"))
        choice = {
            "index": sequence.index,
            "text": self.new_text(sequence, delta),
            "logprobs": self._logprobs(sequence, delta.start, delta.end),
            "finish_reason": delta.finish_reason,
            "stop_reason": sequence.stop_reason if delta.finish_reason else None,
            "prompt_token_ids": sequence.prompt if ids and delta.start == 0 else None,
            "token_ids": sequence.answer[delta.start : delta.end] if ids else None,
        }
        found = self._head() | {"choices": [choice]}
        return self._tail(found, sequence, delta)

    def _head(self) -> Json:
        return {"id": self.name, "object": "text_completion", "created": self.created, "model": self.model}

    def _tail(self, found: Json, sequence: Sequence, delta: Delta) -> Json:
        if self.usage_each_time:
            prompt = len(sequence.prompt)
            found["usage"] = {
                "prompt_tokens": prompt,
                "total_tokens": prompt + delta.end,
                "completion_tokens": delta.end,
            }
        if delta.finish_reason is not None and not self.final_usage:
            found["system_fingerprint"] = self.fingerprint
        return found

    def closing(self, sequences: list[Sequence]) -> Json | None:
        """See `Answer`."""
        if not self.final_usage:
            return None
        usage = self.usage(sequences, details=False)
        return self._head() | {"choices": [], "usage": usage, "system_fingerprint": self.fingerprint}


class ChatAnswer(CompletionAnswer):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl-"

    def whole(self, sequences: list[Sequence]) -> Json:
        """See `Answer`."""
        ids = bool(self.asked.body.get("return_token_ids"))
        return {
            "id": self.name,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._chat_choice(one, ids=ids) for one in sequences],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": self.usage(sequences),
            "prompt_logprobs": prompt_logprobs(sequences[0]),
            "prompt_token_ids": sequences[0].prompt if ids else None,
            "prompt_text": None,
            "kv_transfer_params": sequences[-1].kv_answer,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _chat_choice(self, sequence: Sequence, *, ids: bool) -> Json:
        return {
            "index": sequence.index,
            "message": chat_message(sequence.shown_text()),
            "logprobs": self._content(sequence, 0, sequence.generated),
            "finish_reason": sequence.finish_reason,
            "stop_reason": sequence.stop_reason,
            "token_ids": sequence.answer if ids else None,
            "routed_experts": None,
        }

    def _content(self, sequence: Sequence, start: int, end: int) -> Json | None:
        count = sequence.sampling.logprobs
        if count is None:
            return None
        as_id = bool(self.asked.body.get("return_tokens_as_token_ids"))
        return {"content": [text_score(one, count, as_id=as_id) for one in sequence.scores[start:end]]}

    def opening(self, sequences: list[Sequence]) -> list[Json]:
        """See `Answer`."""
        ids = bool(self.asked.body.get("return_token_ids"))
        return [
            self._head()
            | {
                "choices": [
                    {
                        "index": one.index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "prompt_token_ids": one.prompt if ids else None,
                "prompt_text": None,
            }
            for one in sequences
        ]

    def event(self, sequence: Sequence, delta: Delta) -> Json:
        """See `Answer`."""
        ids = bool(self.asked.body.get("return_token_ids"))
        choice: Json = {
            "index": sequence.index,
            "delta": {"content": self.new_text(sequence, delta)},
            "logprobs": self._content(sequence, delta.start, delta.end),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason:
            choice["stop_reason"] = sequence.stop_reason
        choice["token_ids"] = sequence.answer[delta.start : delta.end] if ids else None
        return self._tail(self._head() | {"choices": [choice]}, sequence, delta)

    def _head(self) -> Json:
        return {"id": self.name, "object": "chat.completion.chunk", "created": self.created, "model": self.model}


class TokensAnswer(Answer):
    """`/inference/v1/generate`."""

    prefix = "generate-tokens-"

    @property
    def _mode(self) -> str:
        return str(self.asked.body.get("output_mode") or "tokens")

    def whole(self, sequences: list[Sequence]) -> Json:
        """See `Answer`."""
        return {
            "request_id": self.name,
            "model": self.model,
            "created": self.created,
            "usage": self.usage(sequences),
            "prompt_logprobs": prompt_logprobs(sequences[0]),
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": sequences[0].prompt if self.asked.body.get("return_token_ids") else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": sequences[-1].kv_answer,
            "ec_transfer_params": None,
            "output_mode": self._mode,
            "choices": [self._choice(one, 0, one.generated, one.finish_reason, one.shown_text()) for one in sequences],
        }

    def _choice(self, sequence: Sequence, start: int, end: int, finish: str | None, text: str) -> Json:
        spans = [{"version": version, "start": at, "end": to} for version, at, to in sequence.spans]
        first = len(sequence.prompt)
        found: Json = {
            "index": sequence.index,
            "finish_reason": finish,
            "stop_reason": sequence.stop_reason if finish else None,
            "token_ids": sequence.tokens[first + start : first + end],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": spans if finish else None,
        }
        if self._mode == "text":
            found["text"] = text
        found["logprobs"] = self._logprobs(sequence, start, end)
        return found

    def _logprobs(self, sequence: Sequence, start: int, end: int) -> Json | None:
        count = sequence.sampling.logprobs
        if count is None:
            return None
        scores = sequence.scores[start:end]
        if self._mode == "text":
            return {"content": [text_score(one, count, as_id=False) for one in scores]}
        return {"content": [_id_score(one) for one in scores]}

    def event(self, sequence: Sequence, delta: Delta) -> Json:
        """See `Answer`."""
        found: Json = {"request_id": self.name, "usage": None}
        if self.usage_each_time:
            prompt = len(sequence.prompt)
            found["usage"] = {
                "prompt_tokens": prompt,
                "total_tokens": prompt + delta.end,
                "completion_tokens": delta.end,
            }
        if self.asked.body.get("return_token_ids") and not self._shown:
            found["prompt_token_ids"] = sequence.prompt
        text = self.new_text(sequence, delta)
        found["output_mode"] = self._mode
        found["choices"] = [self._choice(sequence, delta.start, delta.end, delta.finish_reason, text)]
        return found

    def closing(self, sequences: list[Sequence]) -> Json | None:
        """See `Answer`."""
        if not self.final_usage:
            return None
        return {
            "request_id": self.name,
            "usage": self.usage(sequences, details=False),
            "output_mode": self._mode,
            "choices": [],
        }


def chat_message(text: str) -> Json:
    """The assistant's message."""
    return {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }


def text_score(score: list[tuple[int, float]], count: int, *, as_id: bool) -> Json:
    """One token's logprobs with their texts; `count` alternatives."""

    def one(token: int, value: float, *, spelled: str) -> Json:
        return {"token": _name(token, as_id=as_id), "logprob": value, "bytes": list(spelled.encode())}

    tops = [one(*each, spelled=_name(each[0], as_id=as_id)) for each in score[:count]]
    return one(*score[0], spelled=_name(score[0][0], as_id=False)) | {"top_logprobs": tops}


def _id_score(score: list[tuple[int, float]]) -> Json:
    top = [{"token_id": token, "logprob": value, "rank": at + 1} for at, (token, value) in enumerate(score)]
    return top[0] | {"top_logprobs": top}


def prompt_logprobs(sequence: Sequence) -> list[Json | None] | None:
    """Per prompt token its logprob and the likeliest ones; the first has none."""
    wanted = sequence.sampling.prompt_logprobs
    if wanted is None:
        return None
    found: list[Json | None] = [None]
    state = tokens.prompt_state(sequence.prompt[:1])
    for token in sequence.prompt[1:]:
        entry = {str(token): _scored(token, tokens.prompt_logprob(state, token), tokenizer.SIZE)}
        for rank, (other, value) in enumerate(tokens.candidates(state, 0, wanted)):
            entry.setdefault(str(other), _scored(other, value, rank + 1))
        found.append(entry)
        state = tokens.push(state, token)
    return found


def _scored(token: int, value: float, rank: int) -> Json:
    return {"logprob": value, "rank": rank, "decoded_token": tokenizer.decode((token,))}
