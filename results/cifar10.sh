#!/usr/bin/env bash
# A ResNet-20 on CIFAR-10 in several ways, in the current folder. Given again, it goes on where it stopped.
#
#     RELUCTANT_DATA=~/data bash results/cifar10.sh resnet20-cifar10.th [PART…]
#
# The weights are those of akamaster/pytorch_resnet_cifar10 (ResNet-20, 91.73 %). Without a part it does all of them, one after
# the other; two at once, each with OMP_NUM_THREADS=1, take less time on two cores than one after the other.
set -euo pipefail
[ -f "${1-}" ] || { echo "usage: bash results/cifar10.sh WEIGHTS [PART…]; '${1-}' is no file" >&2; exit 2; }
weights=$1
masks=$(cd "$(dirname "$0")" && pwd)/cifar10
how="--answers cifar10/answers --recipe laptop --epochs 15 --set finetune.epochs=20 --set finetune.lr=0.03"
shift
all="pixel-0 pixel-1 channel zero-out random snip algorithm-1 given-0 more-0 decay-0 cost" # more-0 and decay-0 begin with pixel-0
[ $# -gt 0 ] || set -- $all
for part in "$@"; do
  [[ " $all " == *" $part "* ]] || { echo "there is no part '$part'; there are $all" >&2; exit 2; }
done

once() { # FOLDER COMMAND…: sweeps leave alone what is finished, other commands refuse it
  [ -e "$1/result.json" ] || reluctant "${@:2}" -o "$1"
}
bring() {
  once "$1" import --arch resnet20 --arch-arg shortcut=pad --arch-arg stem_relu=true --weights "$weights" --data cifar10 \
    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 "${@:2}"
}
bring cifar10/base

for part in "$@"; do
  case $part in
    pixel-*)  reluctant sweep cifar10/base --budgets 60k,30k,15k,8k $how --seed "${part#pixel-}" -o "cifar10/$part" ;;
    channel)  reluctant sweep cifar10/base --budgets 30k,15k --granularity channel $how -o cifar10/channel ;;
    zero-out) reluctant sweep cifar10/base --budgets 30k,15k --zero-out $how -o cifar10/zero-out ;;
    random)   reluctant sweep cifar10/base --budgets 30k,15k --method random $how -o cifar10/random ;;
    snip)     reluctant sweep cifar10/base --budgets 30k,15k --method snip $how -o cifar10/snip ;;
    algorithm-1)  # with larger first λ than the paper's, to end in about as many epochs
              reluctant sweep cifar10/base --budgets 30k --schedule paper --set penalty=1e-3 $how --epochs 60 -o cifar10/algorithm-1
              reluctant sweep cifar10/base --budgets 15k --schedule paper --set penalty=2e-3 $how --epochs 60 -o cifar10/algorithm-1-faster ;;
    given-0)  # the mask that SNL found, on the full network's weights instead of those that it searched with
              once cifar10/given-0/snl-30000 linearize cifar10/base --mask "$masks/pixel-0/snl-30000" $how ;;
    more-0)   # 1,000 images held out instead of 5,000, from the network that pixel-0 searched
              bring cifar10/base-98 --validation 0.02
              once cifar10/more-0/snl-30000 finetune cifar10/pixel-0/snl-30000 --base cifar10/base-98 --epochs 20 ;;
    decay-0)  once cifar10/decay-0/snl-30000 finetune cifar10/pixel-0/snl-30000 --set finetune.weight_decay=1e-4 ;;
    cost)     # between two parties; it does not depend on the weights, so one epoch of finetuning will do
              for count in 30000 15000; do
                once "cifar10/cost/snl-$count" linearize cifar10/base --mask "$masks/pixel-0/snl-$count" --recipe laptop \
                  --set finetune.epochs=1 --set finetune.lr=0.03
              done
              for run in base cost/snl-30000 cost/snl-15000; do
                reluctant private bench "cifar10/$run" --images 5 --json > "cifar10/cost/$(basename "$run").json"
              done ;;
  esac
done
