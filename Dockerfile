# One image for both halves; the command says which. The base has Python 3.11 or newer with its venv
# module; no compiler is needed.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS build
# In an environment of its own, for distributions let nobody install beside their Python.
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir "uv>=0.9,<1"
ENV UV_PYTHON_DOWNLOADS=never UV_PYTHON_PREFERENCE=only-system \
    UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PROJECT_ENVIRONMENT=/opt/gpushare
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN /opt/uv/bin/uv sync --frozen --no-default-groups --all-extras --no-install-project
COPY gpushare gpushare
COPY extender extender
COPY deviceplugin deviceplugin
COPY gpusharectl gpusharectl
COPY protos protos
RUN /opt/uv/bin/uv sync --frozen --no-default-groups --all-extras --no-editable

FROM ${BASE_IMAGE}
COPY --from=build /opt/gpushare /opt/gpushare
# HOME: the user has none, and the Kubernetes client wants to know one.
ENV PATH=/opt/gpushare/bin:$PATH HOME=/ PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title=gpushare org.opencontainers.image.licenses=Apache-2.0
# The device plugin's manifest says root: the kubelet's socket folder is root's.
USER 65532:65532
CMD ["gpushare-extender"]
