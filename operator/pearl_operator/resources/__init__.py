"""Pure builders of every Kubernetes object that the operator makes: spec in, dict out.

`merge` joins a user's pod template with ours; `worker`, `gateway`, `secrets` and `disruption` build; nothing here
talks to the API server.
"""
