"""The rollout gateway: the one address that agents and RL frameworks talk to while the fleet changes behind it.

Read it along one turn: `connections` and `bodies` (what a client may cost) → `app` (routes) → `inference` (the paths)
with `identity` (who asks) → `tokens_in` (OpenAI to token ids) → `admission` and `sessions` (who is taken in, which
turn it is) → `turn` (route, prefill, decode, resume) with `places` and `router` (where), `handoff` (prefill
elsewhere), `engine` and `chunks` (the call and its tokens) and `fleet` (what is there, fed by `membership`) →
`turn_state` (the answer so far) → `trajectory` (the token log) → `tokens_out`, `logprobs`, `stops`, `usage` (token
ids to OpenAI), whole (`answers`) or streamed (`streams`). Beside it: `batches` and `permits` (what a batch is, who
may start) with the paths in `control`, `stats` (what the operator reads), `storage` (what survives a restart),
`processes` (one gateway in several processes), `load` (pearl-load).
"""
