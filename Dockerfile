# Operator and gateway in one image: `pearl-operator` (default) or `pearl-gateway`.
# Runs as any non-root user with a read-only root; writes only to /tmp and to mounted volumes.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/product.txt requirements/build.txt requirements/
RUN python -m venv /opt/pearl \
 && /opt/pearl/bin/pip install --require-hashes --only-binary :all: -r requirements/product.txt
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements/build.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY crds/pearl_api crds/pearl_api
COPY planner/pearl_planner planner/pearl_planner
COPY operator/pearl_operator operator/pearl_operator
COPY gateway/pearl_gateway gateway/pearl_gateway
RUN /opt/build/bin/hatchling build -t wheel -d /dist \
 && /opt/pearl/bin/pip install --no-deps --no-index /dist/*.whl \
 && /opt/pearl/bin/pip uninstall --yes pip setuptools \
 && /opt/pearl/bin/python -m compileall -q /opt/pearl/lib

FROM ${BASE}
COPY --from=build /opt/pearl /opt/pearl
# LOGNAME: kopf asks who runs it, and the user of a pod need not be in /etc/passwd.
ENV PATH=/opt/pearl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=pearl
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8090
ENTRYPOINT ["pearl-operator"]
