"""A discrete-event rollout cluster that runs the planner's own `plan()` on a virtual clock."""
