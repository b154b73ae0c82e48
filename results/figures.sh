#!/usr/bin/env bash
# The searches behind the paper's ablations of docs/results.md, on digits, in the current folder; given again, it goes on.
set -euo pipefail
[ -e digits/base/result.json ] || reluctant pretrain --data digits --arch small --arch-arg width=8 --recipe demo -o digits/base

# Algorithm 1 for 300 epochs, whatever the count; then the 700 highest slopes (a tenth) are kept, and finetuned.
how="--budgets 700 --schedule paper --epochs 300 --recipe demo --set search.stop=false"
reluctant sweep digits/base $how --vary penalty=1e-5,1e-4,5e-4,1e-3 -o digits/penalty
reluctant sweep digits/base $how --vary search.lr=1e-4,1e-3,1e-2,1e-1 -o digits/rate
reluctant sweep digits/base $how --set search.growth=1 --vary penalty=1e-5,3e-5,5e-5,1e-4,5e-4,1e-3 -o digits/constant
