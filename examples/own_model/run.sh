#!/usr/bin/env bash
# Three clients on scikit-learn's digits: two with built-in models, one with the model in tiny_model.py.
# Options are passed on to the server: run.sh --rounds 10
set -euo pipefail
cd "$(dirname "$0")" # a client finds tiny_model in the directory it is started in, or in an installed package

out=$(mktemp -d) # stays, to be looked at
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

feddbp-server --port 0 --state-dir "$out/server" --clients 3 --min-clients 3 --alpha 1 \
  --rounds 3 --local-epochs 3 --learning-rate 0.05 "$@" &
server=$!

# Only because of port 0. With a fixed port, clients may be started first: they try until the server answers.
until [ -e "$out/server/endpoint.json" ]; do
  kill -0 "$server" 2>/dev/null # ends the script if the server did not start
  sleep 0.1
done
port=$(sed -E 's/.*"port": ([0-9]+).*/\1/' "$out/server/endpoint.json")

# One thread for each process: by default, each would take all cores of this machine.
options=(--server "127.0.0.1:$port" --state-dir "$out/clients" --log-level warning --threads 1)
feddbp-client --id 2 --model tiny_model:tiny_net "${options[@]}" &
own=$!
feddbp-client --ids 0-1 "${options[@]}" & # two clients in one process

wait "$own" # ends the script if the model does not work
wait
feddbp report "$out/server"
