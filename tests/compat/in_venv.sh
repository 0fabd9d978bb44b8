#!/bin/sh
# Runs a comparison script in the test environment, or says why not and exits 77 (ctest counts that as skipped).
#   in_venv.sh SCRIPT ARGS...   with DEEPINFER_VENV naming the environment
python="$DEEPINFER_VENV/bin/python"
if [ ! -x "$python" ]; then
  echo "SKIPPED: no Python environment at $DEEPINFER_VENV; tools/test_env.sh creates it"
  exit 77
fi
exec "$python" "$@"
