#!/bin/sh
# Runs a JavaScript comparison with the client libraries that tools/test_node.sh installs, or says why not and exits 77 (skipped).
#   in_node.sh SCRIPT PROGRAM ARGS...   with DEEPINFER_NODE naming the folder with node_modules
script=$1
program=$2
shift 2
if ! command -v node > /dev/null || [ ! -d "$DEEPINFER_NODE/node_modules/openai" ]; then
  echo "SKIPPED: no node, or no client libraries in $DEEPINFER_NODE; tools/test_node.sh installs them"
  exit 77
fi
exec node "$script" "$program" "$DEEPINFER_NODE/node_modules" "$@"
