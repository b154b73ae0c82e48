#!/usr/bin/env bash
# A ResNet-18 on CIFAR-100 down to 15,000 ReLUs, in the current folder. Given again, it goes on where it stopped.
#
#     RELUCTANT_DATA=~/data bash results/cifar100.sh resnet18-cifar100.safetensors
#
# Any trained ResNet-18 without a ReLU after its stem will do; `reluctant pretrain --data cifar100 --arch resnet18` makes one.
set -euo pipefail
[ -f "${1-}" ] || { echo "usage: bash results/cifar100.sh WEIGHTS; '${1-}' is no file" >&2; exit 2; }
weights=$1

[ -e cifar100/base/result.json ] || reluctant import --arch resnet18 --weights "$weights" \
  --data cifar100 --mean 0.5071,0.4865,0.4409 --std 0.2673,0.2564,0.2762 -o cifar100/base

# With this curve each of the five epochs ends at one budget or on the way to the first. Once the search has passed a budget, the
# same command in a second shell finetunes beside it.
reluctant sweep cifar100/base --budgets 100k,50k,25k,15k --recipe laptop --epochs 5 --set curve=3.4 --set finetune.epochs=2 \
  --answers cifar100/answers -o cifar100/pixel
