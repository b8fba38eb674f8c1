"""`pearl-load`: replays recorded agent sessions against a gateway and, on request, checks every token of every answer.

`sessions` reads and scales recordings, `plan` turns them into trajectories, `client` talks to the gateway, `replay`
plays them, `check` compares with an undisturbed engine, `report` sums up, `live` shows progress, `cli` is the command.
"""
