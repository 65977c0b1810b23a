"""Files of a run, a model or a study that were damaged after they were written, through the
commands: an older whole one is used and named, or one line names the file.
"""

import json
import shutil

import pyarrow as pa
import pytest
import torch

from clipmill.manifests import disk
from clipmill.train.formats.model_files import load_model, save_model
from clipmill.train.trainer.logbook import kept_lines
from tests.support import commands
from tests.support.ablations import TRAIN
from tests.train.test_resume import cut_back

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4  # of TRAIN


@pytest.fixture(scope="module")
def trained(tiny_pool, tmp_path_factory):
    """A finished run with a checkpoint after each step."""
    out = tmp_path_factory.mktemp("trained") / "run"
    keep = {**TRAIN, "checkpoint_every": 1, "keep_checkpoints": STEPS}
    settings = ["--set", *(f"{key}={value}" for key, value in keep.items())]
    command = ["--mix", f"{tiny_pool}/all=1", "--out", str(out), *settings]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert commands.train(command) == 0
    torch.set_num_threads(before)
    return out, command


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, and the command of that."""
    out, command = trained
    shutil.copytree(out, tmp_path / "run")
    return tmp_path / "run", [str(tmp_path / "run") if w == str(out) else w for w in command]


@pytest.fixture
def evaluate(data, tmp_path):
    (tmp_path / "task.yaml").write_text(f"name: t\nkind: classification\ndata: {data}\n")
    options = ["--task", str(tmp_path / "task.yaml"), "--device", "cpu"]
    return lambda model, *more: commands.evaluate([str(model), *options, *more])


def error_of(capsys):
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_checkpoint_whose_record_has_another_step_is_not_used(run, caplog):
    """With the seal, and without it: a number of another step is a run with other weights."""
    out, command = run
    weights = (out / "export" / "open_clip_model.safetensors").read_bytes()
    disk.remove(out / "run.json")
    change(out / "checkpoints" / f"step-{STEPS}" / "state.json", step=1)
    state = out / "checkpoints" / f"step-{STEPS - 1}" / "state.json"
    disk.write_json(state, {**disk.read_json(state), "step": 1})
    assert commands.train(command) == 0
    assert "state.json was changed after clipmill wrote it" in caplog.text
    assert "state.json is of step 1" in caplog.text
    assert disk.read_json(out / "run.json")["resumed_at"] == STEPS - 2
    assert (out / "export" / "open_clip_model.safetensors").read_bytes() == weights


def test_lines_of_a_log_that_are_damaged_are_counted(run, caplog):
    out, command = run
    cut_back(out, STEPS - 1)
    lines = (out / "log.jsonl").read_text().splitlines()
    (out / "log.jsonl").write_text("\n".join([lines[0], "7", '{"step": "x"}', *lines[1:], "{"]))
    assert len(kept_lines(str(out), STEPS)) == len(lines)
    assert commands.train(command) == 0
    said = f"log.jsonl: 2 of {len(lines) + 3} lines are damaged: left out"
    assert said in caplog.text


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "open_clip_config.json"])
def test_an_export_that_has_changed_is_not_taken_for_the_run_s(
    run, evaluate, tmp_path, capsys, caplog, name
):
    out, _ = run
    flip(out / "export" / name, -5)  # in the last tensor; in the closing braces
    if name.endswith(".json"):
        text = (out / "export" / name).read_bytes()
        (out / "export" / name).write_bytes(text[:-5] + b" \n}\n}")
    assert evaluate(out, "--out", str(tmp_path / "out")) == 2
    assert f"{out}/export/{name} was damaged or changed" in error_of(capsys)
    caplog.clear()
    assert evaluate(out / "export", "--out", str(tmp_path / "out")) == 0  # a folder as any other
    assert f"{out}/export/{name} was damaged or changed" in caplog.text
    assert commands.weights([str(out), "--to", str(tmp_path / "weights")]) == 2
    assert f"{name} was damaged or changed" in error_of(capsys)


def test_checkpoints_of_two_runs_are_not_averaged(run, evaluate, capsys):
    out, _ = run
    state = out / "checkpoints" / f"step-{STEPS}" / "state.json"
    disk.write_json(state, {**disk.read_json(state), "identity": {"config": TRAIN}}, sealed=True)
    assert evaluate(out, "--average-last", "2") == 2
    assert f"step-{STEPS} is of another run" in error_of(capsys)


@pytest.mark.parametrize("content", ["[]", "{}", "null", "7", ""])
def test_a_damaged_run_json_is_named(run, evaluate, capsys, content):
    out, _ = run
    (out / "run.json").write_text(content)
    assert evaluate(out) == 2
    assert f"{out}/run.json" in error_of(capsys)


def test_damaged_predictions_are_made_again(run, evaluate, capsys, caplog):
    caplog.set_level("INFO")
    out, _ = run
    assert evaluate(out) == 0
    path = out / "eval" / "t.parquet"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        assert evaluate(out) == 0
        assert path.read_bytes() == whole
    assert caplog.text.count("it is made anew") == 2
    capsys.readouterr()
    path.write_bytes(b"no table")  # somebody's
    assert evaluate(out) == 2
    assert "has no predictions of an evaluation; name another --out" in error_of(capsys)


def test_a_page_of_measurements_with_other_bits_is_not_read(tmp_path, capsys):
    rows = {"arm": ["a", "b"] * 200, "seed": [k // 2 for k in range(400)],
            "score": [k * 0.001 for k in range(400)]}  # fmt: skip
    path = tmp_path / "scores.parquet"
    disk.write_parquet(path, pa.table(rows))
    assert commands.decide([str(path), "--baseline", "a"]) == 0
    capsys.readouterr()
    for at in range(60, len(path.read_bytes()) // 2, 97):
        flip(path, at)
        assert commands.decide([str(path), "--baseline", "a"]) == 2
        assert str(path) in error_of(capsys)
        flip(path, at)


# --- model folders --------------------------------------------------------------------------------


@pytest.mark.parametrize("format_name", ["open_clip", "huggingface"])
def test_what_is_wrong_in_a_model_folder_is_said_of_a_file(tmp_path, model, format_name):
    folder = tmp_path / "model"
    save_model(model, str(folder), format_name)
    for path in sorted(folder.glob("*.json")):
        whole = path.read_text()
        contents = ["", whole[:20], "[]", "7", '{"model_cfg": 7}', '{"model_cfg": {"text_cfg": 7}}']
        contents += [whole.replace("16", "null"), whole.replace("[", "[[]"), '{"mean": "x"}']
        towers = '"vision_cfg": {}, "text_cfg": {}'
        contents.append(f'{{"model_cfg": {{"embed_dim": 1000000000000, {towers}}}}}')
        for content in contents:
            path.write_text(content)
            try:
                load_model(str(folder))
            except ValueError as error:
                message = str(error)
                assert str(path) in message or f"{path.name}); get" in message
        path.write_text(whole)
    load_model(str(folder))


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "word")


def tokenizer_folder(folder):
    """An open_clip folder with a tokenizer of its own."""
    pytest.importorskip("transformers")
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    text = {"context_length": 8, "vocab_size": 40, "width": 16, "heads": 2, "layers": 1}
    vision = {"image_size": 16, "layers": 1, "width": 16, "patch_size": 8, "head_width": 8}
    towers = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    folder.mkdir()
    state = open_clip.model.CLIP(**towers).state_dict()
    save_file(
        {key: x.contiguous() for key, x in state.items() if key != "attn_mask"},
        folder / "open_clip_model.safetensors",
    )
    text["hf_tokenizer_name"] = "elsewhere"
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": towers}))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", None, "it has no words, only special tokens: its vocabulary is missing"),
        ("tokenizer_config.json", "[]", "{folder}/tokenizer_config.json has no keys with values"),
        ("tokenizer_config.json", "{", "{folder}/tokenizer_config.json is not JSON"),
        ("vocab.txt", "a\n", "tokenizer_config.json, vocab.txt)"),
    ],
)
def test_a_damaged_tokenizer_gives_no_other_tokens(
    tmp_path, evaluate, capsys, name, content, message
):
    folder = tokenizer_folder(tmp_path / "model")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    assert evaluate(folder, "--out", str(tmp_path / "out")) == 2
    assert message.format(folder=folder) in error_of(capsys)


def test_two_words_of_one_number_are_refused(tmp_path, evaluate, capsys, caplog):
    caplog.set_level("INFO")
    folder = tokenizer_folder(tmp_path / "model")
    assert evaluate(folder, "--out", str(tmp_path / "out")) == 0
    assert "its tokenizer has 7 tokens, the model's table 40" in caplog.text
    from transformers import AutoTokenizer

    other = tokenizer_folder(tmp_path / "other")
    AutoTokenizer.from_pretrained(str(folder)).save_pretrained(str(other))
    (other / "vocab.txt").unlink()
    document = json.loads((other / "tokenizer.json").read_text())
    document["model"]["vocab"]["word"] = 4
    (other / "tokenizer.json").write_text(json.dumps(document))
    assert evaluate(other, "--out", str(tmp_path / "out")) == 2
    assert "have one number, 4" in error_of(capsys)
