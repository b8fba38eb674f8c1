"""Puts PEARL itself on a development cluster: images, engine environment, models, volumes, chart.

`prepare` needs the package registries and is cached by content; `install` needs only the cluster. Afterwards the
claims of the examples exist in the release namespace:

| claim     | pods see                | what                                                  |
|-----------|-------------------------|-------------------------------------------------------|
| `engine`  | `/opt/engine`           | vLLM for CPU, read-only                               |
| `models`  | `pvc://models/NAME`     | the small models, read-only                           |
| `weights` | `pvc://weights`         | what trainers publish, shared by all                  |
| `devices` | `/var/run/pearl-device` | what plays GPU memory for borrowers and trainers      |
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pearl_dev.images import Recipe, build
from pearl_worker.engine_env import ensure_engine_environment
from pearl_worker.models import ensure_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_api.wire.worker import WorkerState
    from pearl_dev.fleet import Fleet
    from pearl_dev.handle import Cluster
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "pearl"
RELEASE = "pearl"
ENGINE_PACKAGES = "/opt/engine/lib/python3.11/site-packages"
KILL = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGKILL)"
COMMON = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "requirements/build.txt", "crds/pearl_api")
OPERATOR_INPUTS = (
    *COMMON,
    *("Dockerfile", "requirements/product.txt"),
    *("planner/pearl_planner", "operator/pearl_operator", "gateway/pearl_gateway"),
)
WORKER_INPUTS = (*COMMON, "requirements/worker.txt", "worker_image/Dockerfile.cpu", "worker_image/pearl_worker")


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What `install` puts on a cluster."""

    operator_archive: Path
    operator_image: str
    worker_archive: Path
    worker_image: str
    engine: Path
    models: Mapping[str, Path]


def prepare(settings: Settings, progress: Progress, models: Sequence[str] = ("tiny", "tiny-b")) -> Artifacts:
    """Build images and make engine environment and models, as far as they are new."""
    operator = operator_recipe()
    worker = _tagged(Recipe(ROOT / "worker_image/Dockerfile.cpu", ROOT, "docker.io/pearl/worker-cpu:x", WORKER_INPUTS))
    with progress.step("Engine environment (real vLLM for CPU)"):
        engine = ensure_engine_environment(ROOT, settings.cache)
    with progress.step(f"Models: {', '.join(models)}"):
        made = {name: ensure_model(name, ROOT, settings.cache) for name in models}
    return Artifacts(
        build(settings, operator, progress), operator.tag, build(settings, worker, progress), worker.tag, engine, made
    )


def operator_recipe() -> Recipe:
    """The image of operator and gateway."""
    return _tagged(Recipe(ROOT / "Dockerfile", ROOT, "docker.io/pearl/operator:x", OPERATOR_INPUTS))


def _tagged(recipe: Recipe) -> Recipe:
    """The same recipe with a tag that changes with its content, so that a new build is a new image."""
    return replace(recipe, tag=f"{recipe.tag.rpartition(':')[0]}:{recipe.digest()}")


@dataclass(frozen=True, slots=True)
class Installation:
    """PEARL on a cluster."""

    cluster: Cluster
    artifacts: Artifacts
    weights: Path
    """Folder of this machine behind the claim `weights`."""
    devices: Path
    """Folder of this machine behind the claim `devices`."""
    namespace: str = NAMESPACE
    trainer_namespaces: tuple[str, ...] = ("trainers",)

    def weights_of(self, rollout: str) -> Path:
        """Folder of this machine behind `pvc://weights/ROLLOUT`, made if it is missing; every pod may write there."""
        folder = self.weights / rollout
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        return folder

    def manifest(self, text: str) -> dict[str, Any]:
        """A manifest of the examples with the image that was built here."""
        built = text.replace("docker.io/pearl/worker-cpu:dev", self.artifacts.worker_image)
        loaded: dict[str, Any] = yaml.safe_load(built)
        return loaded

    def helm_values(self, extra: Mapping[str, Any] | None = None) -> str:
        """Values of the chart for this cluster, as JSON (which is YAML)."""
        repository, _, tag = self.artifacts.operator_image.rpartition(":")
        values = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
            "trainerNamespaces": list(self.trainer_namespaces),
            **(extra or {}),
        }
        return json.dumps(values)

    def install_chart(self, extra: Mapping[str, Any] | None = None) -> None:
        """CRDs of this checkout, then `helm upgrade --install --wait` of the chart (Helm never upgrades CRDs)."""
        crds = str(ROOT / "charts/pearl/crds")
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", crds)
        values = self.cluster.paths.root / "values.json"
        values.write_text(self.helm_values(extra))
        self.cluster.helm(
            "upgrade", "--install", RELEASE, str(ROOT / "charts/pearl"), "--namespace", self.namespace,
            "--values", str(values), "--wait", "--timeout", "180s",
        )  # fmt: skip

    def trainer(
        self,
        code: Sequence[Path],
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        models: bool = False,
    ) -> list[dict[str, Any]]:
        """Manifests of `examples/trainer.yaml` that run `command` with an image that is here.

        Args:
            code: files and folders beside the SDK on the pod's PYTHONPATH (`/opt/code`).
            command: as in a container.
            variables: added to the environment, or in place of what the example has.
            models: also mounts the models (at `/models`).
        """
        self._trainer_code(code)
        account, pod = yaml.safe_load_all((ROOT / "examples/trainer.yaml").read_text())
        container, volumes = pod["spec"]["containers"][0], pod["spec"]["volumes"]
        container["image"], container["command"] = self.artifacts.worker_image, list(command)
        wanted = {"PYTHONPATH": f"/opt/code:{ENGINE_PACKAGES}", **(variables or {})}
        kept = [entry for entry in container["env"] if entry["name"] not in wanted]
        container["env"] = kept + [{"name": name, "value": value} for name, value in wanted.items()]
        claims = {"engine": "/opt/engine", "code": "/opt/code", **({"models": "/models"} if models else {})}
        for claim, path in claims.items():
            container["volumeMounts"].append({"name": claim, "mountPath": path, "readOnly": True})
            volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        volumes.append({"name": "tmp", "emptyDir": {}})
        container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108 - the container's own
        return [account, pod]

    def _trainer_code(self, code: Sequence[Path]) -> None:
        folder = self.cluster.paths.root / "volumes" / "code"
        folder.mkdir(parents=True, exist_ok=True)
        for source in (ROOT / "trainer_adapter/pearl_trainer", *code):
            if source.is_dir():
                shutil.copytree(source, folder / source.name, dirs_exist_ok=True)
            else:
                shutil.copy(source, folder)
        self.cluster.volume("code", folder, self.trainer_namespaces[0], read_only=True)

    def kill_engine(self, fleet: Fleet, pod: dict[str, Any]) -> WorkerState:
        """SIGKILL for the engine process of a worker pod; the answer is its agent's state before."""
        state = fleet.agent(pod)
        self.cluster.kubectl(
            "-n", fleet.namespace, "exec", pod["metadata"]["name"], "-c", "worker", "--",
            "python3", "-c", KILL, str(state.engine_pid),
        )  # fmt: skip
        return state

    def uninstall_chart(self) -> None:
        """`helm uninstall --wait`."""
        self.cluster.helm("uninstall", RELEASE, "--namespace", self.namespace, "--wait", "--timeout", "180s")


def install(cluster: Cluster, artifacts: Artifacts, progress: Progress) -> Installation:
    """Namespaces under the `restricted` pod security level, volumes, images and the chart."""
    volumes = cluster.paths.root / "volumes"
    weights, devices, models = volumes / "weights", volumes / "devices", volumes / "models"
    for shared in (weights, devices):
        shared.mkdir(parents=True, exist_ok=True)
        shared.chmod(0o777)  # pods of several users write there
    for name, source in artifacts.models.items():
        shutil.copytree(source, models / name, dirs_exist_ok=True)
    installation = Installation(cluster, artifacts, weights, devices)
    with progress.step("Load images into the nodes"):
        cluster.load_image(artifacts.operator_archive, artifacts.worker_archive)
    with progress.step("Namespaces and volumes"):
        for namespace in (installation.namespace, *installation.trainer_namespaces):
            cluster.apply(_namespace(namespace))
            cluster.volume("engine", artifacts.engine, namespace, read_only=True)
            cluster.volume("models", models, namespace, read_only=True)
            cluster.volume("weights", weights, namespace)
            cluster.volume("devices", devices, namespace)
    with progress.step("Install the chart"):
        installation.install_chart()
    return installation


def _namespace(name: str) -> dict[str, Any]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
