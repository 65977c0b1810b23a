"""An ablation as commands: their order, what is refused before the first one, and how they are
stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests import console, disk, ray_runtime, reader
from clipmill.manifests.layout import AblationLayout
from clipmill.manifests.schema import (
    Ablation,
    Arm,
    Controls,
    FilterSpec,
    PoolRef,
    Recipe,
    Scorer,
    Source,
    TaskSpec,
    View,
)
from clipmill.pipeline import ablation_run
from tests.support import commands

ROOT = Path(__file__).resolve().parents[2]
EXPORT = "/out/scorer/export"
ABLATION = Ablation(
    name="a",
    question="?",
    pools={"web": PoolRef(recipe="web.yaml"), "trusted": PoolRef(recipe="trusted.yaml")},
    arms={"raw": Arm(view="web/raw"), "clip": Arm(view="web/clip")},
    baseline="raw",
    seeds=(0, 1),
    train={"preset": "micro", "samples_seen": "12.8k"},
    evaluate=(TaskSpec(name="t", kind="classification", data="/eval"),),
    primary="t",
    controls=Controls(random_like=("clip",), random_seed=5),
    scorer=Scorer(view="trusted/all", seed=7, train={"lr": 1e-3}),
)


def recipe(*views: str, model: str = f"local-dir:{EXPORT}") -> Recipe:
    return Recipe(
        name="r",
        source=Source(kind="files", paths=("/c.csv",)),
        filters=(FilterSpec(name="clip_score", options={"model": model}),),
        views=tuple(View(name=view) for view in views),
    )


RECIPES = {"web": recipe("raw", "clip"), "trusted": recipe("all")}


def lines(ablation: Ablation, built: list[str], out: str) -> list[tuple[str, str]]:
    steps = ablation_run.commands(ablation, built, out, "inline")
    return [(name, ablation_run.shown(words)) for name, words in steps]


def test_the_scorer_is_trained_before_the_pools_that_it_scores(tmp_path: Path) -> None:
    out = str(tmp_path)
    assert lines(ABLATION, ["trusted", "web"], out) == [
        (
            "build trusted",
            f"clipmill build {out}/recipes/trusted.json --out {out}/pools/trusted --engine inline",
        ),
        (
            "train scorer",
            f"clipmill train {out}/blends/scorer.json --out {out}/scorer --set preset=micro "
            "--set samples_seen=12.8k --set lr=0.001 --set seed=7",
        ),
        (
            "fetch web",
            f"clipmill build {out}/recipes/web.json --out {out}/pools/web --engine "
            "inline --until fetch",
        ),
        (
            "build web",
            f"clipmill build {out}/recipes/web.json --out {out}/pools/web --engine inline",
        ),
        (
            "choose web",
            f"clipmill filter random-like {out}/pools/web clip --seed 5 6",
        ),
        (
            "train and evaluate",
            f"clipmill ablate {out}/ablation.json --out {out} --engine inline",
        ),
    ]
    blend = json.loads((tmp_path / "blends" / "scorer.json").read_text())
    assert (blend["views"], blend["seed"]) == ({"trusted/all": 1.0}, 7)


def test_the_scales_share_pools_and_are_trained_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, out, words = tmp_path / "a.yaml", tmp_path / "out", []
    plain = disk.to_plain(ABLATION, with_defaults=False)
    del plain["scorer"]
    scales = {"small": {"part": 0.1, "seeds": [7, 8], "train": {"samples_seen": "1.28k"}}}
    manifest.write_text(json.dumps({**plain, "scales": scales}))
    monkeypatch.setattr(ablation_run, "run", words.append)
    monkeypatch.setattr(ablation_run, "read_recipes", lambda *_: RECIPES)
    monkeypatch.setattr(ablation_run, "check_ablation", lambda *_: None)

    ablation_run.ablate(str(manifest), str(out), engine="inline", scales=["small"])

    lines = [ablation_run.shown(each) for each in words]
    train = f"clipmill ablate {manifest} --out {out} --engine inline --scales small"
    assert lines[0] == train.replace("ablate", "ablate check")
    assert lines[1:] == [
        f"clipmill build {out}/recipes/trusted.json --out {out}/pools/trusted --engine inline",
        f"clipmill build {out}/recipes/web.json --out {out}/pools/web --engine inline",
        f"clipmill filter random-like {out}/pools/web clip --seed 5 6 12 13",
        f"clipmill filter part {out}/pools/web raw clip --share 0.1 --seed 12 13",
        *(
            f"clipmill filter part {out}/pools/web random_like_clip.seed-{draw} --share 0.1 "
            f"--seed {draw}"
            for draw in (12, 13)
        ),
        train,
        f"clipmill report {out}/scales/small",
        f"clipmill report {out}",
    ]
    at_scale = reader.read_scales(str(manifest), ["small"], str(out))[f"{out}/scales/small"]
    assert at_scale.pool_folder("elsewhere", "web") == f"{out}/pools/web"
    again = json.loads((out / "command.json").read_text())
    assert again == f"clipmill build {manifest} --out {out} --scales small"


SHIPPED = sorted((ROOT / "manifests/ablations").glob("*.yaml"))


@pytest.mark.parametrize("path", [p for p in SHIPPED if "debug" in reader.list_scales(p)])
def test_the_debug_scale_of_a_shipped_ablation_needs_no_data_of_the_whole_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IMAGENET", "DATACOMP", "EVAL", "CLIPMILL_WAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINIWEB_PORT", "80")
    for name in ("MINIWEB", "CIFAR", "CLOTHING"):  # what `clipmill demo` and these pages set
        monkeypatch.setenv(name, str(tmp_path))
    words: list[Sequence[str]] = []
    monkeypatch.setattr(ablation_run, "run", words.append)
    monkeypatch.setattr(ablation_run, "check_ablation", lambda *_: None)
    monkeypatch.setattr(ablation_run, "_run_stages", lambda *_: None)
    ablation_run.ablate(str(path), str(tmp_path / "out"), engine="inline", scale="debug")
    assert words[0][:2] == ["ablate", "check"]
    assert words[-1] == ["report", str(tmp_path / "out")]


def scripts_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first word of a command name a script in the folder."""

    def program(words: Sequence[str]) -> list[str]:
        return [sys.executable, str(folder / words[0]), *words[1:]]

    monkeypatch.setattr(console, "program", program)


def stages_of(monkeypatch: pytest.MonkeyPatch, folder: Path, scorer: str, web: str) -> list[str]:
    """Run the stages with two scripts in place of all commands; the lines that `web` printed."""
    (folder / "scorer.py").write_text(scorer)
    (folder / "web.py").write_text(web)
    steps = [
        (ablation_run.SCORER_STAGE, ["scorer.py", str(folder)]),
        ("fetch web", ["web.py", str(folder), "fetch"]),
        ("build web", ["web.py", str(folder), "score"]),
    ]
    scripts_in(folder, monkeypatch)
    ablation_run._run_stages(iter(steps), str(folder / "out"))
    return (folder / "lines").read_text().split()


def test_a_logged_command_leaves_its_output_and_shows_its_end_where_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "end.py").write_text("import sys; print('one'); sys.exit('error: no rows')")
    scripts_in(tmp_path, monkeypatch)
    seen: list[str] = []
    log = tmp_path / "logs" / "try.log"
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            ablation_run.run_logged(["end.py"], log, seen.append)
    lines = ["$ clipmill end.py", "one", "error: no rows"]
    assert seen == log.read_text().splitlines() == lines * 2
    assert "error: no rows" in capfd.readouterr().err


WEB = """
import sys, time
from pathlib import Path
folder, what = Path(sys.argv[1]), sys.argv[2]
for _ in range(1200):
    if what != "fetch" or (folder / "training").exists():
        break
    time.sleep(0.05)
with open(folder / "lines", "a") as lines:
    print(what, (folder / "training").exists(), (folder / "scorer").exists(), file=lines)
(folder / "fetched").write_text("")
"""


@pytest.mark.slow
def test_the_scorer_is_trained_while_the_web_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "training").write_text("")
while not (folder / "fetched").exists():
    time.sleep(0.05)
print("step 1")
import os
assert os.getpriority(os.PRIO_PROCESS, 0) >= 5
(folder / "scorer").write_text("")
"""
    lines = stages_of(monkeypatch, tmp_path, scorer, WEB)
    assert lines == ["fetch", "True", "False", "score", "True", "True"]
    assert (tmp_path / "out/logs/scorer.log").read_text() == "step 1\n"
    costs = json.loads((tmp_path / "out/costs.json").read_text())
    assert list(costs) == ["build web", "train scorer"]
    assert 0 < costs["train scorer"] < 60
    assert "logs/scorer.log 2>&1 &" in capsys.readouterr().out


@pytest.mark.slow
def test_a_scorer_that_fails_ends_the_sequence_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scorer = "import sys; sys.exit('error: no rows')"
    with pytest.raises(subprocess.CalledProcessError) as error:
        stages_of(monkeypatch, tmp_path, scorer, WEB.replace("1200", "2"))
    assert error.value.cmd[0] == "scorer.py"
    assert "error: no rows" in capfd.readouterr().err
    assert (tmp_path / "lines").read_text().split()[0] == "fetch"
    assert "score" not in (tmp_path / "lines").read_text()


@pytest.mark.slow
def test_a_fetch_that_fails_stops_the_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = """
import sys, time
from pathlib import Path
(Path(sys.argv[1]) / "training").write_text("")
try:
    time.sleep(3600)
finally:
    print("stopped")
"""
    scorer = f"import signal\nsignal.signal(signal.SIGTERM, signal.default_int_handler){scorer}"
    with pytest.raises(subprocess.CalledProcessError) as error:
        stages_of(monkeypatch, tmp_path, scorer, WEB + "sys.exit(3)")
    assert error.value.cmd[0] == "web.py"
    assert "stopped" in (tmp_path / "out/logs/scorer.log").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arms": {"raw": Arm(view="web/raw"), "clip": Arm(view="web/clpi")}},
            "arm 'clip' is 'web/clpi': recipe 'r' has no view",
        ),
        (
            {"arms": {"raw": Arm(view="web/raw"), "clip": Arm(view="wbe/clip")}},
            "it must be POOL/VIEW with a pool of",
        ),
        ({"arms": {"raw": Arm(view="web/raw"), "clip": Arm(view="web")}}, "it must be POOL/VIEW"),
        (
            {"scorer": Scorer(view="trusted/al")},
            "scorer.view is 'trusted/al': recipe 'r' has no view",
        ),
        (
            {"scorer": Scorer(view="nowhere/all")},
            "scorer.view is 'nowhere/all'; it must be POOL/VIEW",
        ),
        (
            {"arms": {"raw": Arm(view="web/raw"), "clip": Arm(blend="/mixed.yaml")}},
            "arm 'clip' is a blend",
        ),
    ],
)
def test_what_the_recipes_tell_is_refused_before_the_first_command(
    change: dict[str, Any], message: str
) -> None:
    ablation_run.check_ablation(ABLATION, RECIPES, [EXPORT])
    with pytest.raises(ValueError, match=r"arm|scorer") as error:
        ablation_run.check_ablation(dataclasses.replace(ABLATION, **change), RECIPES, [EXPORT])
    assert message in str(error.value)


def write_tiny(path: Path, pools: str, more: str = "") -> Path:
    """An ablation of one arm, in a file."""
    path.write_text(
        f"""name: tiny
question: "?"
pools: {pools}
arms: {{raw: web/raw}}
baseline: raw
seeds: [0, 1]
train: {{model: test}}
primary: t
evaluate: [{{name: t, kind: classification, data: data}}]
{more}
"""
    )
    return path


def test_a_run_without_a_result_does_not_cost_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def pretend(words: Sequence[str]) -> None:
        made.append(words[0])
        if words[0] in ("ablate", "report") and "check" not in words:
            raise subprocess.CalledProcessError(3, list(words))

    monkeypatch.setattr(ablation_run, "run", pretend)
    path = write_tiny(tmp_path / "tiny.yaml", "{web: {out: pool}}")
    with pytest.raises(subprocess.CalledProcessError) as error:
        ablation_run.ablate(str(path), str(tmp_path / "out"), engine="inline")
    assert error.value.cmd[0] == "report"
    assert error.value.returncode == 3, "the whole ends as incomplete too"
    assert made[-2:] == ["ablate", "report"]


def test_a_null_web_that_is_the_ablations_own_web_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation_run, "run", lambda words: None)
    for name in ("web", "other"):
        (tmp_path / f"{name}.csv").write_text("file,caption\n")
        source = f"{{kind: files, paths: [{name}.csv]}}"
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nsource: {source}\n")
    write_tiny(tmp_path / "null.yaml", "{web: {recipe: web.yaml}}")
    pools, controls = "{web: {recipe: web.yaml}}", "controls: {null_web: null.yaml}"
    path = write_tiny(tmp_path / "tiny.yaml", pools, controls)
    monkeypatch.setattr(ablation_run, "_run_stages", lambda *_: None)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"null\.yaml builds its pool 'web' from a source of this"):
        ablation_run.ablate(str(path), str(out), engine="inline")
    assert not out.exists()
    write_tiny(tmp_path / "null.yaml", "{web: {recipe: other.yaml}}")
    ablation_run.ablate(str(path), str(out), engine="inline")


def test_the_entry_that_was_called_runs_the_null_web_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that serves the sources: they are there from the first command to the last run."""
    made: list[str] = []

    @contextmanager
    def served() -> Iterator[None]:
        made.append("served")
        yield
        made.append("ended")

    monkeypatch.setattr(ablation_run, "run", lambda words: made.append(words[0]))
    write_tiny(tmp_path / "null.yaml", "{web: {out: pool}}")
    pools, controls = "{web: {out: pool}}", "controls: {null_web: null.yaml}"
    path = write_tiny(tmp_path / "tiny.yaml", pools, controls)
    out = str(tmp_path / "out")
    entry = ["demo", "--web", "w.yaml"]
    ablation_run.ablate(str(path), out, engine="inline", entry=entry, served=served())
    assert made == ["served", "ablate", "ablate", "demo", "ended", "report"]
    again = json.loads(Path(AblationLayout(out).command_json).read_text())
    assert again == f"clipmill demo --web w.yaml {path} --out {out}"


def test_all_commands_and_the_null_web_join_one_ray_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[tuple[str, str | None, bool]] = []

    def pretend(words: Sequence[str]) -> None:
        address = os.environ.get("RAY_ADDRESS")
        joined.append((words[0], address, ray_runtime.is_one_machine()))

    started: list[str] = []
    context = types.SimpleNamespace(gcs_address="127.0.0.1:6000")
    fake = types.SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_runtime, "connect", lambda: started.append("connect"))
    monkeypatch.setattr(ray_runtime, "disconnect", lambda: started.append("disconnect"))
    monkeypatch.setattr(ablation_run, "run", pretend)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_tiny(tmp_path / "null.yaml", "{web: {out: pool}}")
    write_tiny(tmp_path / "tiny.yaml", "{web: {out: pool}}", "controls: {null_web: null.yaml}")
    ablation_run.ablate(str(tmp_path / "tiny.yaml"), str(tmp_path / "out"), engine="ray")
    assert joined == [
        ("ablate", None, False),  # ablate check, which needs no Ray
        ("ablate", "127.0.0.1:6000", True),
        ("build", "127.0.0.1:6000", True),
        ("report", None, False),
    ]
    assert started == ["connect", "disconnect"]
    assert not {"RAY_ADDRESS", ray_runtime.ONE_MACHINE} & set(os.environ)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seeds: [0, 1]|seeds: [0]", "at least two different ones"),
        ("model: test|modle: test", "did you mean 'model'"),
        ("web/raw|wbe/raw", "it must be POOL/VIEW"),
        ("data: data|data: nowhere", "nowhere"),
    ],
)
def test_a_refused_ablation_leaves_no_folder(
    change: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "red").mkdir(parents=True)
    path = write_tiny(tmp_path / "a.yaml", "{web: {out: pool}}")
    path.write_text(path.read_text().replace(*change.split("|")))
    assert commands.build([str(tmp_path / "a.yaml"), "--out", str(tmp_path / "out")]) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line]
    assert errors[-1].startswith("error: ")
    assert message in errors[-1]
    assert not (tmp_path / "out").exists()


SLOW = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
print("started", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("put away", flush=True)
    raise SystemExit(75)
"""
PARENT = """
import sys
from clipmill.manifests import console
from clipmill.pipeline import ablation_run
console.program = lambda words: [sys.executable, sys.argv[1] + "/" + words[0]]
def body():
    ablation_run.run(["slow.py"])
    return 0
raise SystemExit(console.run_command(body))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "whole_group"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGINT, 130, True),
        (signal.SIGTERM, 143, False),
        (signal.SIGTERM, 143, True),
    ],
    ids=["kill-INT", "terminal-INT", "kill-TERM", "group-TERM"],
)
def test_a_stop_signal_reaches_the_command_once_and_waits_for_it(
    number: signal.Signals, status: int, whole_group: bool, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    seen = ""
    while "started" not in seen:
        seen += parent.stdout.readline()
    time.sleep(0.1)
    if whole_group:
        os.killpg(parent.pid, number)
    else:
        parent.send_signal(number)
    output, errors = parent.communicate(timeout=900)
    assert parent.returncode == status
    assert "put away" in output
    lines = errors.split("\n")
    assert lines[1].startswith(f"stopping after {number.name}; ")
    assert lines[3].startswith(f"stopped by {number.name}: ")
    assert "Traceback" not in errors
