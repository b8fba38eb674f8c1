"""`pearl-load`: replays recorded agent sessions against a gateway and, on request, checks every token of every answer.

`sessions` reads and scales recordings and `synthetic` makes sessions up, `plan` turns them into trajectories, `client`
talks to the gateway and `stream` puts its streams together, `replay` plays them, `log` reads the gateway's log back,
`check` compares with an undisturbed engine, `report` sums up, `live` shows progress, `cli` is the command.
"""
