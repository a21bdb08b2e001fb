# One image for both halves; the command says which.
ARG BASE_IMAGE=python:3.13-slim-bookworm
FROM ${BASE_IMAGE} AS build
RUN python3 -m pip install --no-cache-dir "uv>=0.9"
ENV UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PROJECT_ENVIRONMENT=/opt/gpushare
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --no-install-project
COPY gpushare gpushare
COPY extender extender
COPY deviceplugin deviceplugin
COPY protos protos
RUN uv sync --frozen --no-default-groups --no-editable

FROM ${BASE_IMAGE}
COPY --from=build /opt/gpushare /opt/gpushare
ENV PATH=/opt/gpushare/bin:$PATH PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title=gpushare org.opencontainers.image.licenses=Apache-2.0
# The device plugin runs as root, which its manifest says: the kubelet's socket folder is root's.
USER 65532:65532
CMD ["gpushare-extender"]
