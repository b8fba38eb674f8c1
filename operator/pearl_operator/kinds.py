"""The Kubernetes kinds that the operator touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pearl_api import names


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of one kind live in the API."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


POD: Final = Kind("", "v1", "pods", "Pod")
NODE: Final = Kind("", "v1", "nodes", "Node", namespaced=False)
SECRET: Final = Kind("", "v1", "secrets", "Secret")
SERVICE: Final = Kind("", "v1", "services", "Service")
EVENT: Final = Kind("", "v1", "events", "Event")
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment")
AUTOSCALER: Final = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
DISRUPTION_BUDGET: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")
TOKEN_REVIEW: Final = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ROLLOUT: Final = Kind(names.GROUP, names.VERSION, "pearlrollouts", "PearlRollout")
LOAN: Final = Kind(names.GROUP, names.VERSION, "gpuloans", "GPULoan")
CRD: Final = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
RESOURCE_CLAIM: Final = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_SLICE: Final = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASS: Final = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
EARLIER_DEVICE_VERSIONS: Final = ("v1beta2", "v1beta1")
"""Of `resource.k8s.io`, before Kubernetes 1.34."""
