"""A real Kubernetes on one machine, for development, tests and the demo.

Everything is built from pinned sources and runs in network namespaces of its own:
control plane, two or more real nodes (kubelet, containerd, kube-proxy), DNS,
Prometheus and fake GPUs. `pearl_dev.cluster` puts the parts together and
`pearl_dev.handle` is what tests use.
"""
