"""One module per experiment: each turns a `Setting` into a `Report`."""
