"""The words of the Compose files that `feddbp compose` writes; what differs from file to file is in braces."""

from __future__ import annotations

from typing import Final

FEDERATION: Final = """\
# One server, {clients} clients with models of their own, and the certificates they know each other by.
# Made by `{made_by}`, which makes them for other sizes, methods and data as well.
#
#   docker compose -f FILE up                                          run it to its end
#   docker compose -f FILE run --rm status                             see where it stands
#   docker compose -f FILE cp server:/var/lib/feddbp/summary.json .    take the results
#   docker compose -f FILE down --volumes                              forget everything
name: feddbp

x-hardened: &hardened
  init: true # Python as the first process would be deaf to signals until it listens to them
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: [no-new-privileges:true]
  pids_limit: 256
  stop_grace_period: 30s
  pull_policy: never # the images are built from this checkout

x-client: &client
  <<: *hardened
  image: feddbp-client
  networks: [federation]
  mem_limit: 2g
  restart: on-failure:20 # from its checkpoint; a client whose run is over ends with 0
  depends_on:
    certificates: {{condition: service_completed_successfully}}
    server: {{condition: service_healthy}}

services:
  # Makes what is missing, puts each party's own key into that party's volume, and ends. Fresh volumes belong to root,
  # so it is root, without a network and with no right but that of giving files away.
  certificates:
    <<: *hardened
    image: feddbp-server
    user: "0:0"
    cap_add: [CHOWN]
    network_mode: none
    healthcheck: {{disable: true}}
    entrypoint: [feddbp, certs, parties, /parties]
    command: [--host=server, --host=127.0.0.1, --ids=0-{last_id}, --owner=10001]
    volumes:
      - authority:/parties/authority
      - certs-server:/parties/server
      - certs-operator:/parties/operator
{certificate_mounts}

  server:
    <<: *hardened
    image: feddbp-server
    build: {{context: {source}, dockerfile: deploy/server.Dockerfile}}
    command:
{server_arguments}
    networks: [federation]
    mem_limit: 1g
    restart: on-failure:20 # goes on with the open round
    depends_on:
      certificates: {{condition: service_completed_successfully}}
    volumes:
      - certs-server:/certs:ro
      - state-server:/var/lib/feddbp

  # Not started by `up`.
  status:
    <<: *hardened
    image: feddbp-server
    profiles: [tools]
    networks: [federation]
    healthcheck: {{disable: true}}
    entrypoint: [feddbp, status, --server=server:50051]
    volumes: [certs-operator:/certs:ro]

{client_services}

networks:
  federation:
    internal: true # no way out, and none in

volumes:
  authority:
  certs-server:
  certs-operator:
  state-server:
{client_volumes}
"""

CLIENT: Final = """\
  {name}: # {architecture}
    <<: *client{build}
    command: [--id={client_id}, --server=server:50051]
    volumes:
      - certs-{name}:/certs:ro
      - state-{name}:/var/lib/feddbp{data}
"""

# In full: `data:/data` would be a volume called data. And a directory that is not there is a mistake to be told, not
# to be covered up by an empty one.
DATA_MOUNT: Final = """
      - {{type: bind, source: {directory}, target: /data, read_only: true, bind: {{create_host_path: false}}}}"""

CLIENT_BUILD: Final = """
    build:
      context: {source}
      dockerfile: deploy/client.Dockerfile
      args:
        TORCH_INDEX_URL: ${{TORCH_INDEX_URL:-}}"""

GPU_OVERLAY: Final = """\
# GPUs for the clients of docker-compose.yml, in which the id of each client says which one it gets.
# Made by `{made_by}`.
#
#   docker compose -f deploy/docker-compose.yml -f deploy/docker-compose.gpu.yml up --build
services:
{client_services}
"""

GPU_CLIENT: Final = """\
  {name}:
    image: feddbp-client:cuda{build}
    deploy:
      resources:
        reservations:
          devices:
            - {{driver: nvidia, device_ids: ["{gpu}"], capabilities: [gpu]}}
"""

GPU_BUILD: Final = """
    build:
      args:
        TORCH_INDEX_URL: ${TORCH_CUDA_INDEX_URL:-}"""
