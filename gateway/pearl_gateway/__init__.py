"""The rollout gateway: the one address that agents and RL frameworks talk to while the fleet changes behind it.

Read it along one turn: `app` (routes) → `identity` (who asks) → `tokens_in` (OpenAI to token ids) → `turn` (route,
prefill, decode, resume) with `router` (where), `engine` (the call) and `fleet` (what is there, fed by `membership`)
→ `trajectory` (the token log) → `tokens_out` (token ids to OpenAI). Beside it: `batches` and `permits` (what a batch
is, who may start), `stats` (what the operator reads), `storage` (what survives a restart).
"""
