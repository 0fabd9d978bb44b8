#!/usr/bin/env bash
# Installs the JavaScript client libraries of the comparison tests into build/node-test (or the folder given). Where that cannot be done
# it says why and still exits 0: the tests are skipped.
#   tools/test_node.sh [FOLDER]
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build/node-test}
packages=(openai@6.49.0 @anthropic-ai/sdk@1.14.0)
stamp="$folder/.have-${packages[*]//[\/ ]/-}"
[ -e "$stamp" ] && exit 0
if ! command -v npm > /dev/null; then
  echo "test environment: no npm on this machine; the JavaScript clients are skipped"
  exit 0
fi
mkdir -p "$folder"
if (cd "$folder" && timeout 300 npm install --no-audit --no-fund --silent --fetch-retries 0 "${packages[@]}" > npm.log 2>&1); then
  : > "$stamp"
else
  echo "test environment: cannot install ${packages[*]}; the JavaScript clients are skipped:"
  tail -2 "$folder/npm.log"
fi
exit 0
