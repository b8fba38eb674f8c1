"""What PEARL's ServiceAccounts may do, for people and tests: the reference page `docs/reference/rbac.md`.

`python -m pearl_dev.rbac --write | --check` makes it from the chart as helm renders it, and from `needs`, which says
what code needs each right.
"""
