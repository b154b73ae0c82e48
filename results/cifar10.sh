#!/usr/bin/env bash
# A ResNet-20 on CIFAR-10 in several ways, in the current folder. Given again, it goes on where it stopped.
#
#     RELUCTANT_DATA=~/data bash results/cifar10.sh resnet20-cifar10.th
#
# The weights are those of akamaster/pytorch_resnet_cifar10 (ResNet-20, 91.73 %).
set -euo pipefail
weights=$1
how="--recipe laptop --epochs 15 --set finetune.epochs=20 --set finetune.lr=0.03"

[ -e cifar10/base/result.json ] || reluctant import --arch resnet20 --arch-arg shortcut=pad --arch-arg stem_relu=true \
  --weights "$weights" --data cifar10 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 -o cifar10/base

for seed in 0 1; do
  reluctant sweep cifar10/base --budgets 60k,30k,15k,8k $how --seed $seed -o cifar10/pixel-$seed
done
reluctant sweep cifar10/base --budgets 30k,15k --granularity channel $how -o cifar10/channel
reluctant sweep cifar10/base --budgets 30k,15k --zero-out $how -o cifar10/zero-out
reluctant sweep cifar10/base --budgets 30k,15k --method random $how -o cifar10/random
reluctant sweep cifar10/base --budgets 30k,15k --method snip $how -o cifar10/snip
