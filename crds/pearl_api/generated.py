"""Every checked-in file that is made from the models: its path in the repository and its present text.

A development tool: it needs PyYAML, which the models do not.
"""

from pathlib import PurePosixPath

import yaml

from pearl_api.crd import RESOURCES, crd
from pearl_api.gateway_openapi import gateway_api
from pearl_api.openapi import as_text, loan_api
from pearl_api.reference import pages

_HEADER = "# Generated from pearl_api by `make crds`; change the models, not this file.\n"


def crd_files() -> dict[PurePosixPath, str]:
    """The CRDs, and the chart's copies of them."""
    files = {}
    for resource in RESOURCES:
        text = _HEADER + yaml.safe_dump(crd(resource), sort_keys=False, width=120, allow_unicode=True)
        for folder in ("crds", "charts/pearl/crds"):
            files[PurePosixPath(folder) / f"{resource.plural}.yaml"] = text
    return files


def doc_files() -> dict[PurePosixPath, str]:
    """The reference pages, and the APIs for tools."""
    folder = PurePosixPath("docs/reference")
    found = {folder / f"{name}.md": text for name, text in pages().items()}
    apis = {"loan-api": loan_api(), "gateway-api": gateway_api()}
    return {**found, **{folder / f"{name}.json": as_text(api) for name, api in apis.items()}}
