# A client. TORCH_INDEX_URL selects the build of torch, constraints.txt its version:
#
#   docker build -f deploy/client.Dockerfile -t feddbp-client .
#   docker build -f deploy/client.Dockerfile -t feddbp-client --build-arg TORCH_INDEX_URL=... .
#   docker run --init -v $PWD/certs/client-3:/certs:ro -v state:/var/lib/feddbp feddbp-client --id 3 --server HOST:50051
#
# Without TORCH_INDEX_URL torch is installed from pip's default index.

FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

FROM base AS wheel
RUN pip install 'hatchling==1.33.0'
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY common common
COPY server server
COPY client client
COPY lab lab
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /dist .

# A separate stage, so that a change of pyproject.toml that changes no dependency does not invalidate later layers.
FROM base AS requirements
COPY pyproject.toml constraints.txt deploy/requirements.py /src/
RUN python /src/requirements.py /src/pyproject.toml client > /requirements.txt \
 && grep -E '^torch(vision)?==' /src/constraints.txt > /torch.txt

FROM base
RUN groupadd --gid 10001 feddbp \
 && useradd --uid 10001 --gid feddbp --no-create-home --home-dir /var/lib/feddbp --shell /usr/sbin/nologin feddbp \
 && install -d -o feddbp -g feddbp -m 0750 /var/lib/feddbp \
 && python -m venv --without-pip /opt/feddbp
# torch in its own layer, which is rebuilt only for another version or index. Its dependencies are installed from the
# default index, so that the other index serves only torch and torchvision.
ARG TORCH_INDEX_URL=
COPY --from=requirements /torch.txt /src/
RUN if [ -n "$TORCH_INDEX_URL" ]; then \
      pip --python /opt/feddbp/bin/python install --no-deps --index-url "$TORCH_INDEX_URL" -r /src/torch.txt; \
    fi \
 && pip --python /opt/feddbp/bin/python install -r /src/torch.txt
COPY --from=requirements /src/constraints.txt /requirements.txt /src/
RUN pip --python /opt/feddbp/bin/python install -c /src/constraints.txt -r /src/requirements.txt
COPY --from=wheel /dist /src/
RUN pip --python /opt/feddbp/bin/python install --no-deps --no-index /src/*.whl
ENV PATH=/opt/feddbp/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    FEDDBP_CERTS=/certs FEDDBP_STATE_DIR=/var/lib/feddbp FEDDBP_DATA_DIR=/data
USER 10001:10001
WORKDIR /var/lib/feddbp
ENTRYPOINT ["feddbp-client"]
