"""Tests here run against a real Kubernetes on this machine."""

from pearl_dev.testing import cluster

__all__ = ["cluster"]
