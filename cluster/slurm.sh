#!/usr/bin/env bash
# One command on a Ray cluster of the nodes that Slurm gives, from the checkout, on a file system
# that all nodes see:
#
#   sbatch --nodes=4 cluster/slurm.sh \
#       clipmill build manifests/recipes/RECIPE.yaml --out s3://BUCKET/POOL
#   sbatch --nodes=2 --gpus-per-node=8 cluster/slurm.sh \
#       clipmill train BLEND.yaml --out s3://BUCKET/RUN --ray --ranks 16
#
# The first node runs the head and the command, every node runs workers. The job ends with the exit
# status of the command. A job that was stopped is sent again as it was: finished work is kept.
# Variables of the shell, such as AWS_ENDPOINT_URL, reach every node.

#SBATCH --job-name=clipmill
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:TERM@90

set -euo pipefail
[ $# -gt 0 ] || { echo "error: the command is missing: sbatch cluster/slurm.sh clipmill …" >&2; exit 2; }
cd "${SLURM_SUBMIT_DIR:-.}"
if [ -d .venv/bin ]; then export PATH="$PWD/.venv/bin:$PATH"; fi

# The secret of this cluster: without it nobody else on these nodes can join or send a job.
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_raylet_start_wait_time_s=120 # on a busy node its agents need more than Ray gives them

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --all-ip-addresses)
address=${address%% *}
port=$((20000 + SLURM_JOB_ID % 20000)) # two jobs may share a node
# The path of a socket in it has at most 107 characters.
folder=/tmp/ray-$SLURM_JOB_ID
common=(--block --disable-usage-stats --object-store-memory=268435456)
if [ -n "${SLURM_CPUS_ON_NODE:-}" ]; then common+=(--num-cpus="$SLURM_CPUS_ON_NODE"); fi

steps=()
command=
waiting=
are_running() {
    for step in "${steps[@]}"; do if kill -0 "$step" 2> /dev/null; then return 0; fi; done
    return 1
}
end() {
    trap - EXIT TERM INT
    if [ -n "$waiting" ]; then kill "$waiting" 2> /dev/null || true; fi
    if [ -n "$command" ]; then kill -TERM "$command" 2> /dev/null && wait "$command" || true; fi
    # srun passes the signal on, and `ray start --block` ends what it started: nothing else on the
    # node is touched.
    for step in "${steps[@]}"; do kill -TERM "$step" 2> /dev/null || true; done
    for _ in {1..60}; do if are_running; then sleep 0.5; fi; done
    for step in "${steps[@]}"; do kill -KILL "$step" 2> /dev/null || true; done
    srun --overlap --nodes="${#nodes[@]}" --ntasks-per-node=1 rm -rf "$folder" || true
}
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# Wait until so many nodes are alive. Exit 3 where they are not within 300 s, or where Ray has ended
# on one before.
wait_for_nodes() {
    python - "$1" << 'END' &
import sys, time, ray
wanted, until = int(sys.argv[1]), time.monotonic() + 300
while True:
    try:
        ray.init(logging_level="error", log_to_driver=False)
        break
    except Exception as error:  # the head is not there yet
        if time.monotonic() > until:
            sys.exit(f"error: the head did not start within 300 s: {error}")
        time.sleep(1)
while (alive := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > until:
        sys.exit(f"error: {alive} of {wanted} nodes have joined within 300 s")
    time.sleep(1)
print(f"{alive} nodes with {ray.cluster_resources()}", flush=True)
END
    waiting=$!
    while kill -0 "$waiting" 2> /dev/null; do
        for step in "${steps[@]}"; do
            if ! kill -0 "$step" 2> /dev/null; then
                echo "error: Ray has ended on a node before all were there; see above" >&2
                exit 3
            fi
        done
        sleep 1
    done
    wait "$waiting" || exit 3
    waiting=
}

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --temp-dir="$folder" \
    --include-dashboard=false "${common[@]}" &
steps+=($!)
export RAY_ADDRESS=$address:$port
wait_for_nodes 1
others=$((${#nodes[@]} - 1))
if [ "$others" -gt 0 ]; then
    # Not before the head is there: `ray start` gives up after half a minute without it.
    env -u RAY_ADDRESS srun --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 \
        --exclude="$head" ray start --address="$address:$port" "${common[@]}" &
    steps+=($!)
    wait_for_nodes "${#nodes[@]}"
fi

"$@" &
command=$!
status=0
wait "$command" || status=$?
command=
exit "$status"
