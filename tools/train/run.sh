#!/bin/bash
# Runs one training stage: tools/train/run.sh STAGE [options of train.py]. Needs a Python with a recent PyTorch, see README.md.
set -e
cd "$(dirname "$0")/../.."
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# Freed memory stays with the process: mapping it anew for every large tensor costs a fifth of a step.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184
export OMP_WAIT_POLICY=passive ONEDNN_PRIMITIVE_CACHE_CAPACITY=4096
PYTHON=${PYTHON:-build/venv-train/bin/python}
mkdir -p build/train
exec nice -n 10 "$PYTHON" tools/train/train.py --stage "$@"
