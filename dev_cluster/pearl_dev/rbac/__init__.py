"""What PEARL's ServiceAccounts may do, for people and tests: the reference page `docs/reference/rbac.md`.

`python -m pearl_dev.rbac --write | --check` makes it from `needs`, which says what code needs each right; the chart's
tests hold the chart as helm renders it to that.
"""
