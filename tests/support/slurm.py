"""Stand-ins for Slurm's commands: nodes are names, and every process runs on this machine."""

from __future__ import annotations

import stat
from pathlib import Path

SBATCH = r"""#!/usr/bin/env bash
# sbatch [OPTIONS] SCRIPT WORDS: runs the script at once, as --wait does. Options of the command
# line go over those of the script.
set -eu
nodes=1
read_option() {
    case $1 in
        --nodes=*) nodes=${1#*=} ;;
        --job-name=* | --ntasks-per-node=1 | --exclusive | --requeue | --signal=B:*@*) ;;
        --gpus-per-node=* | --time=* | --partition=* | --account=*) ;;
        *) echo "sbatch: unrecognized option '$1'" >&2; exit 1 ;;
    esac
}
given=()
while [[ ${1-} == --* ]]; do given+=("$1"); shift; done
script=$1; shift
while read -r mark option; do
    if [ "$mark" = "#SBATCH" ]; then read_option "$option"; fi
done < "$script"
for option in "${given[@]}"; do read_option "$option"; done
export SLURM_JOB_ID=${SLURM_TEST_JOB:-4711} SLURM_SUBMIT_DIR=$PWD SLURM_CPUS_ON_NODE=1
export SLURM_JOB_NODELIST=node[1-$nodes] SLURM_JOB_NUM_NODES=$nodes
echo "srun: script on node1" >> "$SLURM_TEST_LOG"
exec bash "$script" "$@"
"""

SCONTROL = r"""#!/usr/bin/env bash
# scontrol show hostnames node[1-N]
set -eu
[ "$1 $2" = "show hostnames" ] || exit 1
last=${3#*-}
for number in $(seq 1 "${last%?}"); do echo "node$number"; done
"""

SRUN = r"""#!/usr/bin/env bash
# srun OPTIONS WORDS: one process on each of the nodes; a signal is passed on to all of them.
set -eu
list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes=1
while [[ ${1-} == --* ]]; do
    case $1 in
        --overlap | --ntasks-per-node=1 | --ntasks=*) ;;
        --nodes=*) nodes=${1#*=} ;;
        --nodelist=*) list=${1#*=} ;;
        --exclude=*) list=$(grep -vx -- "${1#*=}" <<< "$list") ;;
        *) echo "srun: unrecognized option '$1'" >&2; exit 1 ;;
    esac
    shift
done
chosen=$(head -n "$nodes" <<< "$list")
[ "$(wc -l <<< "$chosen")" = "$nodes" ] || { echo "srun: too few nodes" >&2; exit 1; }
processes=()
for node in $chosen; do
    echo "srun: $node: $*" >> "$SLURM_TEST_LOG"
    SLURMD_NODENAME=$node "$@" &
    processes+=($!)
done
pass_on() { kill -TERM "${processes[@]}" 2> /dev/null || true; }
trap pass_on TERM INT
status=0
for process in "${processes[@]}"; do
    wait "$process" || status=$?
    while kill -0 "$process" 2> /dev/null; do wait "$process" || status=$?; done
done
exit $status
"""

HOSTNAME = r"""#!/usr/bin/env bash
[ "$*" = --all-ip-addresses ] || exit 1
echo "127.0.0.1 "
"""


def write_stand_ins(folder: Path) -> Path:
    """Write sbatch, srun, scontrol and hostname into a folder for PATH."""
    folder.mkdir(parents=True)
    commands = {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL, "hostname": HOSTNAME}
    for name, text in commands.items():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder
