# One image for both programs and the command line; the command selects one (docs/dev/release.md).
#
# The base must have Python 3.11 or newer with its venv module. No compiler is needed. Every command runs
# on the architecture of the builder, so an image for another one needs no emulation.
ARG BASE_IMAGE=docker.io/library/python:3.13-slim-bookworm
# The digest (sha256:...) of the base; empty: not pinned.
ARG BASE_DIGEST=
# The same image for the architecture of the builder, where one name does not select both.
ARG BUILDER_IMAGE=${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}}
ARG BUILDPLATFORM
ARG TARGETPLATFORM

# What rarely changes: the Python packages of uv.lock. Later builds need no network.
FROM --platform=$BUILDPLATFORM ${BUILDER_IMAGE} AS packages
# For networks with their own certificate authority (docs/dev/release.md).
ARG SSL_CERT_FILE
WORKDIR /src
COPY pyproject.toml uv.lock release/locked.py ./
# In a separate environment, because distributions do not allow packages next to their Python.
RUN python3 locked.py uv.lock uv hatchling > /tmp/tools.txt && python3 -m venv /opt/uv && \
    /opt/uv/bin/pip install --no-cache-dir --require-hashes -r /tmp/tools.txt
ENV UV_PYTHON_DOWNLOADS=never UV_PYTHON_PREFERENCE=only-system \
    UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PROJECT_ENVIRONMENT=/opt/gpushare
ARG TARGETARCH
# Compiled now, because the result is read-only.
RUN case "$TARGETARCH" in amd64) cpu=x86_64;; arm64) cpu=aarch64;; *) cpu=$(uname -m);; esac && \
    /opt/uv/bin/uv sync --frozen --no-default-groups --group extender --group deviceplugin \
    --no-install-project --python-platform $cpu-unknown-linux-gnu && \
    python3 -m compileall -q /opt/gpushare/lib

FROM packages AS build
COPY README.md LICENSE ./
COPY protos protos
COPY gpushare gpushare
COPY deviceplugin deviceplugin
COPY extender extender
COPY gpusharectl gpusharectl
# Into a separate folder, and so into a separate layer: the layer of the packages stays the same. The
# wheel is the command line; both programs are copied next to it, each with a command.
RUN /opt/uv/bin/hatchling build -t wheel -d /tmp/wheel && /opt/uv/bin/uv pip install \
    --offline --no-deps --compile-bytecode --python /opt/gpushare/bin/python --prefix /opt/own /tmp/wheel/*.whl && \
    cp -r protos deviceplugin extender /opt/own/lib/python3*/site-packages && \
    /opt/gpushare/bin/python -m compileall -q /opt/own/lib && \
    for program in extender deviceplugin; do \
      printf '#!/opt/gpushare/bin/python\nimport sys\n\nfrom %s.__main__ import main\n\nsys.exit(main())\n' $program \
        > /opt/own/bin/gpushare-$program && chmod 755 /opt/own/bin/gpushare-$program; \
    done

# The base without its known installers: nothing is installed in the image.
FROM --platform=$TARGETPLATFORM ${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}} AS base
FROM --platform=$BUILDPLATFORM ${BUILDER_IMAGE} AS root
COPY --from=base / /root-of-image
RUN cd /root-of-image && rm -rf usr/local/bin/pip* usr/local/lib/python3*/site-packages/pip* \
    usr/local/lib/python3*/ensurepip usr/lib/python3*/ensurepip usr/share/python-wheels

FROM scratch
COPY --from=root /root-of-image /
COPY --from=packages /opt/gpushare /opt/gpushare
COPY --from=build /opt/own /opt/gpushare
# `make image` adds the labels revision and, if given, created and base.digest.
ARG BASE_IMAGE
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title=gpushare \
      org.opencontainers.image.description="Shares NVIDIA GPUs between Kubernetes pods by memory" \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.url=https://github.com/gpushare/gpushare \
      org.opencontainers.image.source=https://github.com/gpushare/gpushare \
      org.opencontainers.image.documentation=https://github.com/gpushare/gpushare/tree/main/docs \
      org.opencontainers.image.base.name=${BASE_IMAGE}
ENV PATH=/opt/gpushare/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# The manifest of the device plugin selects root, which owns the kubelet's socket folder.
USER 65532:65532
CMD ["gpushare-extender"]
