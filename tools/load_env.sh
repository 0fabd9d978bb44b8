#!/usr/bin/env bash
# Makes the Python environment of the published load generator (about 1.2 GB, no GPU packages): build/venv-load or the folder given.
# Safe to call again. Where it cannot be installed it says so and exits 0: the test that needs it is then skipped.
#   tools/load_env.sh [FOLDER]
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${1:-$root/build/venv-load}
package=aiperf==0.13.0
[ -e "$venv/.have-$package" ] && exit 0
mkdir -p "$(dirname "$venv")"
if [ ! -x "$venv/bin/python" ] && ! python3 -m venv "$venv" 2>"$venv.log"; then
  echo "load generator: python3 -m venv failed (is python3-venv installed?); its test will be skipped"
  rm -rf "$venv"
  exit 0
fi
if timeout 900 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >"$venv/pip.log" 2>&1; then
  : >"$venv/.have-$package"
else
  echo "load generator: cannot install $package; its test will be skipped:"
  tail -2 "$venv/pip.log"
fi
exit 0
