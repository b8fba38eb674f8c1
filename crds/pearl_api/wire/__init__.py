"""Messages between processes, one module per receiver: `worker` (the agent), `gateway`, `loans` (the operator)."""
