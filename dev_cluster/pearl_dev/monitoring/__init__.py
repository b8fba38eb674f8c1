"""What the processes tell Prometheus, for people: the reference page of all metrics and a dashboard for Grafana.

`python -m pearl_dev.monitoring --write | --check` makes them from the processes' own registries. It is a tool of the
repository and lives here because it imports operator, gateway and worker agent, which nothing that is shipped may.
"""
