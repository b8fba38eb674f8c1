# Operator and gateway in one image: `pearl-operator` (default) or `pearl-gateway`.
# Runs as any non-root user with a read-only root; writes only to /tmp and to mounted volumes.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# What we depend on: changes seldom, so it is a layer of its own.
FROM ${BASE} AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/product.txt /requirements/
RUN python -m venv --without-pip /opt/pearl \
 && python -m pip --python /opt/pearl/bin/python install --require-hashes --only-binary :all: -r /requirements/product.txt

FROM dependencies AS wheel
COPY requirements/build.txt /requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: -r /requirements/build.txt
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY crds/pearl_api crds/pearl_api
COPY planner/pearl_planner planner/pearl_planner
COPY operator/pearl_operator operator/pearl_operator
COPY gateway/pearl_gateway gateway/pearl_gateway
RUN /opt/build/bin/hatchling build -t wheel -d /dist

FROM ${BASE}
COPY --from=dependencies /opt/pearl /opt/pearl
# Copied, not mounted: older buildah reuses a RUN layer although what it mounts has changed.
COPY --from=wheel /dist /dist
RUN python -m pip --python /opt/pearl/bin/python --no-cache-dir --disable-pip-version-check \
      install --root-user-action ignore --no-deps --no-index /dist/*.whl
# LOGNAME: kopf asks who runs it, and the user of a pod need not be in /etc/passwd.
ENV PATH=/opt/pearl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LOGNAME=pearl
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 8090
ENTRYPOINT ["pearl-operator"]
