#!/usr/bin/env bash
# schemathesis against the server's own description: tests/clients/schemathesis.sh [SECONDS]
# Builds the program, serves the demonstration model and sends requests made from /openapi.json, good
# and bad. Fails when an answer has a status of 500 or more (501 stands for what is declared not to be
# supported), when one does not come, or when the server is not well afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "SKIPPED schemathesis: $1"; exit 0; }
seconds=${1:-120}
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
venv=$target/clients/schemathesis
version=4.32.5
pin=schemathesis==$version
is_there="import importlib.metadata as m, sys; sys.exit(m.version('schemathesis') != '$version')"
if ! "$venv/bin/python" -c "$is_there" 2>/dev/null; then
    python3 -m venv "$venv" && "$venv/bin/pip" install -q "$pin" || skip "$pin does not install"
fi

cargo build --quiet --bin precast
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$folder"' EXIT
"$target/debug/precast" compile --model demo --graph-bs 1 4 8 --max-context 512 --out "$folder/demo" 2>"$folder/log"
"$target/debug/precast" serve "$folder/demo" --threads 1 --port 0 2>>"$folder/log" &
server=$!
for _ in $(seq 600); do
    base=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$folder/log")
    [ -n "$base" ] && grep -q "ready to roll" "$folder/log" && break
    kill -0 "$server" || { cat "$folder/log"; exit 1; }
    sleep 0.1
done

status=0
# It keeps what it found in the directory it runs in.
cd "$folder"
timeout "$((seconds + 120))" "$venv/bin/schemathesis" --config-file "$root/tests/clients/schemathesis.toml" run "$base/openapi.json" \
    --checks not_a_server_error --mode all --phases examples,fuzzing,stateful \
    --max-time "$seconds" --request-timeout 60 --workers 2 --seed 1 --no-color || status=$?

[ "$("$venv/bin/python" -c 'import requests, sys; print(requests.get(sys.argv[1] + "/health", timeout=10).status_code)' "$base")" = 200 ]
if grep -q panicked "$folder/log"; then grep -A5 panicked "$folder/log"; exit 1; fi
kill -TERM "$server"
wait "$server"
server=
exit "$status"
