"""The operator: watches PearlRollouts and their pods, asks the planner, and moves the fleet there.

Reading order, from watch event to pod patch: `main` → `index` → `loop` → `observe` → `act` → `report`.
Beside the path: `ports` (what the loop may do to the world) with their adapters `kube`, `gateway_client`,
`prometheus` and `agents`; `validate` (last look before a destructive action); `resources` (pure builders of
Kubernetes objects); `conditions` (pure functions from facts to conditions); `lease`; `web`; `metrics`.
"""
