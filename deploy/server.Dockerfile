# The server, and the commands `feddbp certs`, `health` and `status`. No torch.
#
#   docker build -f deploy/server.Dockerfile -t feddbp-server .
#   docker run --init -p 50051:50051 -v $PWD/certs/server:/certs:ro -v state:/var/lib/feddbp feddbp-server --rounds 50

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
RUN python /src/requirements.py /src/pyproject.toml > /requirements.txt

FROM base
RUN groupadd --gid 10001 feddbp \
 && useradd --uid 10001 --gid feddbp --no-create-home --home-dir /var/lib/feddbp --shell /usr/sbin/nologin feddbp \
 && install -d -o feddbp -g feddbp -m 0750 /var/lib/feddbp \
 && python -m venv --without-pip /opt/feddbp
COPY --from=requirements /src/constraints.txt /requirements.txt /src/
RUN pip --python /opt/feddbp/bin/python install -c /src/constraints.txt -r /src/requirements.txt
COPY --from=wheel /dist /src/
RUN pip --python /opt/feddbp/bin/python install --no-deps --no-index /src/*.whl
ENV PATH=/opt/feddbp/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    FEDDBP_HOST=0.0.0.0 FEDDBP_CERTS=/certs FEDDBP_STATE_DIR=/var/lib/feddbp
USER 10001:10001
WORKDIR /var/lib/feddbp
EXPOSE 50051
# A check starts a Python process. Until the first success, Docker 25 and later check every 5 seconds of the start period,
# which is their default; --start-interval, which would say so, is refused by earlier builders. Earlier engines check after
# 30 seconds for the first time.
HEALTHCHECK --interval=30s --timeout=20s --start-period=120s --retries=3 CMD ["feddbp", "health"]
ENTRYPOINT ["feddbp-server"]
