"""`pearl-load`: replays recorded agent sessions against a gateway and, on request, checks every token of every answer.

`bounds` says what may be asked for. `recordings` reads recorded sessions, `synthetic` makes some up, `sessions` scales
them, `plan` turns them into trajectories. `client` talks to the gateway, `stream` puts its streams together, `replay`
plays, `log` reads the gateway's log back, `check` compares with an undisturbed engine, `report` sums up, `live`
shows progress, `run` does all of it, `cli` is the command.
"""
