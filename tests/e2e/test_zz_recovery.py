"""Operator and chart come and go: nothing stays half done, nothing leaks.

Named to run last in this folder, because it removes what the others share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conftest import QUICKSTART
from pearl_dev.fleet import Fleet, wait_for
from pearl_dev.product import NAMESPACE, RELEASE

if TYPE_CHECKING:
    from pearl_dev.fleet import Api
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster

OPERATOR = "app.kubernetes.io/component=operator"


def stop_operator(installation: Installation) -> None:
    kubectl = installation.cluster.kubectl
    kubectl("-n", NAMESPACE, "scale", "deployment/pearl-operator", "--replicas=0")
    kubectl("-n", NAMESPACE, "delete", "pod", "-l", OPERATOR, "--grace-period=0", "--force", "--ignore-not-found")
    kubectl("-n", NAMESPACE, "wait", "--for=delete", "pod", "-l", OPERATOR, "--timeout=60s")


def start_operator(installation: Installation) -> None:
    kubectl = installation.cluster.kubectl
    kubectl("-n", NAMESPACE, "scale", "deployment/pearl-operator", "--replicas=1")
    kubectl("-n", NAMESPACE, "rollout", "status", "deployment/pearl-operator", "--timeout=120s")


def test_an_operator_killed_in_the_middle_of_a_change_is_finished_by_the_next(
    disaggregated: Fleet, installation: Installation
) -> None:
    fleet, pods, before = disaggregated, disaggregated.uids(), disaggregated.status()["target"]["id"]
    fleet.patch({"ratio": {"prefill": 2, "decode": 1}})
    wait_for(lambda: fleet.status()["target"]["id"] > before, seconds=30, what="a new target was written")
    stop_operator(installation)
    start_operator(installation)
    fleet.wait_roles({"prefill": 2, "decode": 1})
    fleet.wait_ready(3)
    assert fleet.uids() == pods


def test_a_rollout_deleted_while_the_operator_is_down_takes_its_pods_along(
    quickstart: Fleet, api: Api, installation: Installation
) -> None:
    assert quickstart.workers()
    stop_operator(installation)
    api.delete(quickstart.path)
    labels = f"pearl.dev/rollout={quickstart.name}"
    try:
        wait_for(
            lambda: (
                not api.items("/api/v1/pods", labelSelector=labels)
                and not api.items(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", labelSelector=labels)
            ),
            seconds=120,
            what="the rollout's pods and gateway are gone",
        )
    finally:
        start_operator(installation)


def test_uninstall_removes_all_but_the_custom_resources_and_reinstall_picks_them_up(
    installation: Installation, api: Api
) -> None:
    manifest = installation.manifest(QUICKSTART.read_text())
    manifest["metadata"] |= {"name": "again", "namespace": NAMESPACE}
    manifest["spec"]["capacity"] = {"reserved": {"gpus": 1}}
    fleet = Fleet(api, NAMESPACE, "again")
    fleet.apply(manifest)
    fleet.wait_ready(1, seconds=240)
    installation.uninstall_chart()
    release = f"app.kubernetes.io/instance={RELEASE}"
    wait_for(lambda: not fleet.workers(), seconds=120, what="the worker pods are gone")
    base = f"/namespaces/{NAMESPACE}"
    for path in (
        f"/apis/apps/v1{base}/deployments",
        f"/api/v1{base}/secrets",
        f"/api/v1{base}/services",
        f"/apis/rbac.authorization.k8s.io/v1{base}/roles",
        f"/apis/rbac.authorization.k8s.io/v1{base}/rolebindings",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ):
        assert api.items(path, labelSelector=release) == [], path
        assert api.items(path, labelSelector="pearl.dev/rollout=again") == [], path
    assert api.get(fleet.path) is not None, "custom resources stay"
    installation.install_chart()
    fleet.wait_ready(1, seconds=240)
    api.delete(fleet.path)
    fleet.close()
