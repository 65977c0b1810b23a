"""What each column of a stranger's table is: one role for every column, with the reason.

A role is told by an option, known from the form, read from the name, or seen in the cells. What a
column could be and is not told is asked for in one sentence that names columns and values of the
file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clipmill.manifests.arrays import Array, FloatArray, Integers
from clipmill.verdict.tables.cells import is_missing
from clipmill.verdict.tables.frames import (
    Column,
    Frame,
    are_same_groups,
    distinct,
    group_codes,
    pairs_of,
    recoded,
    text_of,
    varies,
)
from clipmill.verdict.tables.metric_names import (
    QUALIFIERS,
    deciding_words,
    is_bare_metric,
    is_known,
    name_facts,
    plain_name,
    task_stem,
)
from clipmill.verdict.tables.spreads import counts_runs, header_kind, spread_kind

ARM_WORDS = (
    "arm", "variant", "treatment", "recipe", "method", "methods", "approach", "algorithm", "algo",
    "strategy", "technique", "system", "model", "models", "model_name", "model_id", "setup",
    "condition", "name", "group", "experiment", "experiment_name", "exp", "exp_name", "run_group",
    "run_name", "display_name", "policy", "agent", "config", "config_name", "configuration",
    "architecture", "arch", "backbone", "network", "net", "encoder", "classifier", "estimator",
    "detector", "learner", "solver", "heuristic", "framework", "baseline", "team", "submission",
    "participant", "ablation", "run", "runs", "pretrained", "checkpoint", "train_data",
    "training_data", "train_dataset", "training_dataset", "training_set", "train_set",
    "pretrain_data", "data", "filter", "tokenizer", "optimizer", "loss_function", "loss_fn",
    "command", "modelo", "modele", "modell", "metodo", "methode", "verfahren", "algoritmo",
    "algorithme", "algorithmus",
)  # fmt: skip
# Columns that name an arm together with one of `ARM_WORDS`.
TOGETHER = re.compile(
    r"pretrained|version|revision|weights?|checkpoint|ckpt|adapter|peft|variant|tag|weights_name|"
    r"model_version|model_revision|precision|quantization|type"
)
OF_MODELS = {"model", "models", "model_name", "name", "architecture", "arch", "backbone"}
ARM_ROLES = ("text", "metric", "identifier", "setting", "value", "count")  # that an arm may have
COUNTER = "by its name: counts the runs of an arm"  # which are not paired by it
# A pattern of names for each role, the first that fits. Not known here: a metric or an arm.
NAMES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (role, re.compile(pattern), reason)
    for role, pattern, reason in (
        ("state", r"(sys_|run_|trial_|job_|experiment_|result_)?(state|status)|"
         r"(sys_)?(crashed|failed|finished|completed)|exit_code|returncode",
         "by its name: the state of a run"),
        ("per_sample", r"per_sample|per_sample_\w+", "by its name: values of single samples"),
        ("direction", r"(higher|greater|bigger|more|lower|less|smaller)_is_better|direction|goal",
         "by its name: which direction is better"),
        ("setting", r"(max|num|n|total|warmup|warm_up|decay|train|max_train|min|log|logging|save|"
         r"eval|accum\w*|grad\w*|lr\w*|patience|inner|outer|local|early_stop\w*)_(\w+_)?"
         r"(steps?|epochs?|iters?|iterations?|rounds?|updates?|timesteps?)|epochs|patience|"
         r"epochs_\w+|\w+_epochs|(\w+_)?episodes|total_env_steps|"
         r"(\w+_)?(budget|time_?limit)(_time)?_(s|secs?|seconds|ms|min|mins|minutes|h|hours|"
         r"steps|tokens|usd)|(\w+_)?time_?limit",
         "by its name: a setting"),
        ("count", r"best_(epoch|step|iter|iteration|round)|\w+_this_(epoch|step|iter|round)",
         "by its name: when it was best, or a part of a step"),
        ("seed", r"(?!(n|num|nb|number|total|count)_)(\w+_)?(random_)?(seeds?|semente|"
         r"semilla|graine|random_state|rng)(_?(id|no|num|number|idx|index|value|runs?|used))?",
         "by its name: tells runs apart"),
        ("seed", r"replicates?|replications?|repetitions?|repeats?|reps?|trials?|launch|"
        r"attempt|restart|"
         r"(run|exp|experiment|trial|rep|repeat|repetition|replicate)_?(no|num|number|idx|index)",
         COUNTER),
        ("step", r"_?step|(\w+_)?(global_?step|step|steps|frame|iter|iters|iteration|iterations|"
         r"epoch|generations?|updates?|num_updates|env_steps|timesteps?|frames|training_iteration|"
         r"batch_idx|round|rounds|it)", "by its name: a step of training"),
        ("scale", r"(\w+_)?(samples|tokens|examples|images|pairs|sequences|bytes|words|items)_"
         r"(seen|processed|consumed|trained)|scale|tokens|compute|(n|num|train\w*)_tokens",
         "by its name: how large a run was"),
        ("time", r"(\w+_)?(train|test|eval|fit|tune|build|load|predict|inference)_(s|secs?|ms|min)|"
         r"(eval|train|test|val|predict)_(\w+_)?(runtime|samples_per_second|"
         r"steps_per_second|tokens_per_second|jit_compilation_time)|"
         r"_?(\w+_)?(runtime|timestamp|datetime\w*|duration|elapsed\w*|seconds|secs|hours|hrs|"
         r"minutes|mins|evaluated(_at|_on)?|created(_at)?|started(_at)?|finished_at|updated(_at)?|ended(_at)?|eta|"
         r"heartbeat(_at)?|date|day|days|walltime|wall_clock|wall|relative_time\w*|sec|"
         r"timestamps?|utc|when)(_(s|sec|secs|seconds|ms|min|mins|h|hrs|hours|total))?|time_used_\w+|time_(\w+_)?(s|ms|sec)|time_(total|taken|elapsed|step|per_\w+|to_\w+|this_\w+|since_\w+|utc)|(\w+_)?time(_(s|sec|secs|seconds|ms|min|mins|h|hours|total|used|"
         r"taken|elapsed|epoch|per_epoch|per_iter|spent|process|wall|step|str))?",
         "by its name: a time"),
        ("task", r"(?!((pre)?train(ing)?|upstream|fine_?tun\w+)_)"
         r"(\w+_)?(dataset|benchmark|test_set|testset|eval_set|evalset)(_name)?|tasks?|section|(competition|challenge)(_id|_name)?|(dataset|benchmark)_id|"
         r"task_name|task_id|key|corpus|scenario|environment|env|env_id|env_name|game|problem|"
         r"suite|subset|subtask|language|languages|lang|locale|domain|category|subject|n_?shots?|"
         r"num_?fewshots?|num_?shots?|shots?|k_?shots?|few_?shots?|class|class_name|organ|attribute|"
         r"corruption|severity|source_domain|target_domain|test_data|eval_data|test_domain|"
         r"instances?(_name|_id)?|series(_name|_id)?|regions?|roi|country|"
         r"dataset_(config|path)|(\w+_)?(in|out)_?(of_)?distribution",
         "by its name: what is tested on"),
        ("identifier", r"rank_(test|train|val)_\w+|"
         r"_?(\w+_)?(id|ids|uuid|guid|hash|fingerprint|checksum|sha|sha\d+|commit|"
         r"md5|url|urls|uri|filepath|file_path|path|filename|dir|directory|folder|logdir|link|pid|"
         r"hostname)|_?(host|node_ip|ip|user|username|author|email|artifact\w*|sweep|job_type|gpu|"
         r"gpus|gpu_type|gpu_name|device|entity|project|doi|bibkey|citation|experiment_(tag|key)|"
         r"lifecycle_stage|number|no|nr|row|idx|index|line|year|venue|published|publication\w*|"
         r"released?|release_date|month|conference|python_version|git(_\w+)?|node|rev|place|"
         r"position|job_num|(run|trial|job)_key)", "by its name: an identifier"),
        ("spread", r"(\w+_)?(std|stdev|stddev|std_?dev|std_?err|stderr|sem|se|sd|var|variance|"
         r"standard_(deviation|error)\w*|deviation|sigma|ci|ci_?\d+|ci_?(low|lower|high|upper|lo|"
         r"hi|l|u|above|below|width|size|half)\w*|\d*_?ci_\w+|conf_?int\w*|confidence_interval\w*|"
         r"error_bars?|errorbars?|iqr|half_width|plus_minus|uncertainty|95|99)|(std|stdev|stderr|"
         r"sem|se|sd|variance|ci\d*|conf_?int|standard_(deviation|error)|std_?dev|std_?err|"
         r"deviation|uncertainty|interval|confidence)_(of_)?\w+|(\w+_)?(quantiles?|"
         r"percentiles?)_\w+|(\w+_)?q(0\d{2}|\d{2}|\d{3})|lower|upper|low|high|lo|hi|lcb|ucb|lb|"
         r"ub|margin|margin_of_error|moe|mad|cv|q\d+|p(25|75|05|95)|quantile\w*|percentile\w*|"
         r"minimum|maximum|min|max|range|interval|pm|bootstrap\w*|5|25|50|75|95|(lower|"
         r"upper)_(bound|limit|ci|err(or)?)\w*|variation|(\w+_)?([tzf]_?test|[tzf]_?stat\w*|"
         r"[tzf]_value|p_?val(ue)?s?(_\w+)?|[pt]_?adj\w*|p_(raw|holm|bonf\w*|fdr|bh|corr\w*)|wilcoxon\w*|cohens?_d|effect_size|significan\w+)",
         "by its name: a spread, not a value"),
        ("setting", r"lr_\w+|(\w+_)?versions?|"
         r"(lambda|lam|alpha|beta|gamma|tau|mu|coeff?)_\w+|"
         r"(\w+_)?(lr\d*|learning_rate|wd|"
        r"weight_decay|batch_?size|bs|bsz|dropout\w*|"
         r"num_\w+_steps|height|momentum|beta\d?|beta_\d|betas|gamma|alpha|lambda|lam|tau|temperature|temp|eps|epsilon|"
         r"warmup|optimizer|optim|scheduler|schedule|hidden\w*|width|depth|layers|n_layers|heads|dim|"
         r"dims|dimension|embed\w*|paras?|params|parameters|mparams|param_count|params_count|n_params|num_params|n_hidden|n_estimators|n_neighbors|n_clusters|bsz|gnorm|clip|loss_scale|ups|gb_free|flops|gflops|macs|gmacs|image_size|"
         r"img_size|input_size|resolution|res|patch_size|crop|crop_pct|num_workers|workers|"
         r"world_size|n_gpus|num_gpus|ngpu|precision|dtype|fp16|bf16|amp|ema\w*|clip_grad\w*|grad_\w+|"
         r"max_len\w*|max_seq\w*|seq_len\w*|context\w*|threshold|thr|thresh|top_p|"
         r"price|price_\w+|watts?|tdp|ssd|msrp|bits|n_?bits|[wa]_?bits|bit_width|lora_\w+|quant\w*|bits_\w+|augment\w*|aug|mixup|cutmix|label_smoothing|smoothing|loss_fn|"
         r"activation|norm|memory|data_time|grad_norm|pretrain\w*|init\w*|weights_init|kernel\w*|stride|channels|pool\w*|"
         r"(aug\w*_)?prob(ability)?|keep_rate|ratio|rate|fraction|frac|share|proportion|noise|noise_level|budget|"
         r"interpolation|size_mb|model_size|file_size|image_width|text_width)"
         r"(_?(k|m|b|g|mb|gb|millions?|billions?|pct|percent))?",
         "by its name: a setting"),
        ("test_size", r"n_samples|num_samples|test_size|test_samples|n_test|num_test|n_eval|"
         r"eval_samples|num_eval_samples|support|sample_len|n_examples|num_examples|n_items|"
         r"num_questions|n_questions|num_instances|n_instances|num_docs|"
         r"n_docs", "by its name: the number of test samples"),
        ("count", r"n|k|m|(\w+_)?(count|counts|num|total|totals|size|sizes|length|len)|"
         r"(n|num|no|nb|number_of|total|count)_\w+|rows|pairs|kept|images|samples|examples|"
         r"runs|(avg|mean|median|max|min|output|input|prompt|completion|total|generated|num)_"
         r"(tokens|length|len|words|chars|characters)|vocabulary|vocab|(\w+_)?(sentences|words|characters|chars|utterances|queries|documents|docs|files|classes|"
         r"instances)|tp|fp|tn|fn|true_positives?|false_positives?|true_negatives?|false_negatives?",
         "by its name: a count"),
        ("metric", r"metrics?|metric_name|measures?|tag|variable|indicator|criterion|score_type|"
         r"statistic|measurement|metric_type|eval_metric", "by its name: names of metrics"),
        ("value", r"values?|score|result|results|metric_value|main_score|y|obs_value",
         "by its name: the values"),
        ("text", r"(\w+_)?(notes?|comments?|description|desc|remarks?|tags|summary|command|cmd|"
         r"(termination|stop|stopping)_\w+|done|should_checkpoint|is_(best|last)|\w+_reason|args|argv|citation|abstract|message|text|prompt_text|response|pred(iction)?s?|predicted|gold|readme|bibtex|"
         r"display|paper|paper_title|title|authors?|license|organization|affiliation|error_message)",
         "by its name: a text"),
    )
)  # fmt: skip


# Of a table: what its rows are, and what its columns are.
CORNER = re.compile(
    r"\s*(models?|methods?|algorithms?|approach(es)?|systems?|arms?)\s*[/\\|]\s*"
    r"(data ?sets?|tasks?|benchmarks?|metrics?)\s*", re.I
)  # fmt: skip


def role_of_name(name: str) -> tuple[str, str]:
    """The first role that a name could have, and why; "" for a name of an arm or a metric."""
    if CORNER.fullmatch(name):
        return "", ""
    plain = plain_name(name)
    fitting = ((role, reason) for role, pattern, reason in NAMES if pattern.fullmatch(plain))
    return next(fitting, ("", ""))


# Counts that have the word of a metric.
COUNTED = re.compile(
    r"(\w+_)?evaluated|(correct|incorrect|passed|failed|solved)_(samples|tests|cases|items|"
    r"questions|answers|problems|tasks|examples)"
)
PASSED = re.compile(r"(\w+_)?(passed|solved|correct|succeeded|hits)")  # beside a total
SETTING_PREFIX = re.compile(
    r"^((best_)?(config|cfg|params?|hparams?|hp|args|hyperparameters|opt|lr)|parameters|settings)"
    r"[./_]",
    re.I,
)
METRIC_PREFIX = re.compile(r"^(metrics?|summary|scores?|results?|eval|test|val|valid)[./]", re.I)
SPREAD_OF = re.compile(
    r"(_|\b)(std|stdev|stddev|std_?dev|std_?err|stderr|sem|se|sd|var|variance|ci|ci_?\d*|err|error|"
    r"errors|deviation|dev|pm|spread|uncertainty|interval|margin|ci_?(low|high|lower|upper|lo|hi)|"
    r"min|max|lower|upper|low|high|lo|hi|lb|ub|iqr|range|q\d+|p\d+|n|count|num|samples|"
    r"rank|pvalue|p_value|delta|diff|gain|improvement|drop|baseline_delta)$"
)
DERIVED = re.compile(
    r"^[Δ∆δ]|^(delta|diff|differences?|improvement|rel\w*[ _](gain|change))(\b|_)", re.I
)
DIFFERENCE = re.compile(r"_(diff|delta|difference|change)$")
CHANGED = re.compile(r"\W*\d|\W*$")  # `+1.5%p`, `↑ 0.3`, a dash
DERIVED_WORDS = re.compile(r"speed_?up|slow_?down|ratio|factor|gain|relative|improvement|times")
FLAGS = re.compile(r"(has|use|uses|used|with|no|do|enable|enabled|require)_.*")
SPREAD_BEFORE = re.compile(
    r"^(std|stdev|stddev|std_?dev|stderr|sem|se|sd|var|variance|ci|err|error|min|max|lower|upper|n|"
    r"num|count|delta|diff)_(of_)?"
)
CROSSING = re.compile(
    r"(\w+_)?(fold|folds|cv|prompt|template|episode|ep|doc|sample|question|query|image|img|item|"
    r"example|instance|sentence|utterance|pair|case|patient|subject|participant|fold_id|split_id)"
    r"(_?(id|idx|index|no|num|number|name))?"
)
ELSEWHERE = "the values are in"  # one column, and not in this one
SHARED_SPLITS = "the columns are the splits of a cross-validation, which all rows share"
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
LEAST_DATES = 5  # distinct ones in a column that is no name of a few versions
SPLIT_NAME = re.compile(r"(\w+_)?(split|splits|phase|partition|set|mode|part|stage)")
# Names of settings that are as often names of results: the cells decide.
OPEN_SETTING = re.compile(
    r"(?!learning|keep|(\w+_)?dropout)((\w+_)?(ratio|rate|fraction|frac|share|proportion|prob|noise)"
    r"(_(pct|percent))?|(lambda|lam|alpha|beta|gamma|tau|mu|coeff?)_\w+|"
    r"(\w+_)?(width|height|depth))"
)
NO_METRIC = re.compile(r"ranks?_(test|train|val|of)|(lambda|lam|alpha|beta|gamma|tau|mu|coeff?)_")
THRESHOLD = re.compile(r"(?<!_at)(?<!_best)_(thr|thresh|threshold)$")
SPLITS = ("test", "testing", "eval", "evaluation", "val", "valid", "validation", "dev", "train",
          "training")  # fmt: skip
DATA_SETS = re.compile(
    r"(^|_)(imagenet\w*|cifar\w*|mnist|fashion_?mnist|svhn|coco\w*|flickr\w*|food\w*|cars|pets|dtd|"
    r"caltech\w*|eurosat|sun\w*|voc\w*|ade\w*|cityscapes|kitti|glue|squad\w*|mmlu\w*|gsm8k|"
    r"hellaswag|arc\w*|winogrande|piqa|boolq|truthfulqa|humaneval|mbpp|librispeech|vtab\w*|stl\w*|"
    r"iris|wine|adult|boston|diabetes|breast_cancer|sst\w*|mnli|qqp|qnli|rte|cola|imdb|yelp|agnews)"
    r"(_|$)"
)
RUN_NAMES = re.compile(
    r"(run|trial|experiment|exp|job|task)?_?(name|key|id|uuid|hash|num|no|number|tag)|runs?|name|"
    r"experiments?|exp|key|id|index|display_name|uid|folder|dir|path|file_?name|logdir|rev|log|trial"
)
STAGES = {"train", "training", "val", "valid", "validation", "dev", "test", "eval", "best", "last",
          "final", "mean", "avg", "std", "before", "after", "source", "target"}  # fmt: skip
NUMBERED = re.compile(r"([A-Za-z]{1,12}[-_ ]?)?\d+")
STEP_FILE = re.compile(r"(.*?)(\d{2,})\.(pkl|pt|pth|ckpt|tar|h5|bin|safetensors|npz)")
PATH = re.compile(r".*[/\\].*\.(?!\d+$)\w{1,6}")
BASELINES = ("baseline", "raw", "control", "unfiltered", "base", "no_filter", "none", "default")
OF_LM_EVAL = "of lm-eval"  # whose standard errors are over the test samples of one run
TWO_LEVELS = "two levels of keys could be arms"
DIVERGED = re.compile(r"[-+]*(nan|inf|infinity)", re.I)  # the value of a run that diverged
NO_ARM = ("", "nan", "<na>", "#n/a", "null", "-", "--", "–", "—")
NAMED = "told by --metric or --task"
HOLDS_SETTINGS = "it holds settings"  # a dictionary in each cell
MOST_CHECKED = 1000  # rows on which a share is compared with its count
MOST_DERIVED = 16  # columns among which differences of others are looked for
NEAR = 0.01  # of a quotient that is written with few digits
SHOWN = 4  # values of a column in a message
MOST_PATTERN = 10_000_000  # arms times distinct values whose pattern is looked at
# How many times larger a column of one metric may be than another one, over tasks and over runs.
LIKE_TASKS, LIKE_RUNS = 1000.0, 20.0
MOST_NAMED_ARMS = 12  # columns that are arms, of which one may have the name of a metric by chance
MOST_ANSWERS = 4  # distinct cells of a column of true and false, with blanks
MOST_STATES = 15  # distinct ones of a column of states
ROUND = 2  # significant digits of a setting, at most
LEAST_DIGITS = 4  # of a number that was measured
CROSSED = 0.75  # of the seeds or arms that each number of a column has which an experiment chose
UNEVEN = 3  # times as often as another one, at most, is a value that was chosen
LEAST_ROWS = 8  # from which few distinct numbers say that a column is a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user says of the columns: names for each role, and a pattern of the arms' names.

    names: {role: columns} of arm, seed, block, task, metric, value, scale, test_size, step. The arm
    may be `columns` (each numeric column is one) or `file`. where: (column, value) of the rows that
    count; several values of one column are alternatives. pattern: a regular expression with the
    groups arm and, as they are there, arm2 (which is joined to it), seed, scale and task. table:
    which of several tables of a file. baseline: an arm, which tells the column that has it. named:
    the metric and the task that are asked for: a column of that name holds values. runs: of each
    mean, 0 where a column (of the role `runs`) or nothing tells it. spread: `sd`, `sem` or `ci95`,
    what the spreads beside means are.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    where: tuple[tuple[str, str], ...] = ()
    pattern: str | None = None
    table: str | None = None
    baseline: str | None = None
    named: tuple[str, ...] = ()
    runs: int = 0
    spread: str = ""


Chosen = tuple[tuple[str, str], ...]  # (column, value) of the rows that count


@dataclass(frozen=True, slots=True)
class Way:
    """An answer to a question: columns of roles, or values that choose rows.

    grows: the role that takes what the answer leaves open, `where` for further values; "": none.
    pattern: of the arms' names. missing: what must be told of means beside it.
    """

    what: str
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grows: str = ""
    where: Chosen = ()
    pattern: str | None = None
    missing: str = ""

    @property
    def text(self) -> str:
        """The options of the command, and what they mean."""
        words = [word for role, names in self.names.items() for word in (OPTIONS[role], *names)]
        words += ["--where"] * bool(self.where)
        words += [f"{name}={value}" for name, value in self.where]
        texts = [*map(quoted, words), *([f"--pattern '{self.pattern}'"] if self.pattern else [])]
        return " ".join(texts) + (f" ({self.what})" if self.what else "")

    @property
    def size(self) -> int:
        """How many columns it names."""
        return len(self.where) + sum(map(len, self.names.values()))

    def grown(self, question: Open) -> Way:
        """The same answer to a further question."""
        names, where, split = question.names, question.where, question.split
        steps = next((way.names["step"] for way in question.ways if "step" in way.names), ())
        if steps and self.grows == "block":
            return replace(self, names={**self.names, "step": steps})
        if self.grows == "where":
            return replace(self, where=(*self.where, *where))
        if self.grows == "block" and split:
            grown = {role: (*self.names.get(role, ()), *own) for role, own in split.items()}
            return replace(self, names={**self.names, **grown})
        own = self.names.get(self.grows, ())
        return replace(self, names={**self.names, self.grows: (*own, *names)})


class Open(ValueError):
    """A question that has answers. names: the columns without a role. where: values of them that
    choose the rows of most arms. split: what some of them count, and what the others are parts of.
    otherwise: what is said where no answer leads to a comparison; "": all are shown all the same.
    """

    def __init__(
        self, text: str, ways: Sequence[Way], names: Sequence[str], where: Chosen = (),
        otherwise: str = "", split: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(f"{text}{', '.join(way.text for way in ways) or otherwise}")
        self.text, self.ways, self.names, self.where = text, ways, names, where
        self.otherwise, self.split = otherwise, split or {}


def quoted(name: str) -> str:
    """A name as one word of a command."""
    return name if len(name.split()) == 1 else f"'{name}'"


@dataclass(slots=True)
class Roles:
    """{column: (role, reason)}, and the columns of the roles that make a measurement.

    arms_are_columns: the arms are the columns of `values`. runs: a column that names each run, each
    of one arm. paired: runs of one seed belong together. spreads: {column of means: the column of
    their spreads}. run_count: the column that says of how many runs each mean is. unsettled:
    columns that would be asked for if rows of one run differed in them.
    """

    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    arm: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    runs: str = ""
    paired: bool = True
    block: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    task: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    is_long: bool = False
    arms_are_columns: bool = False
    step: str = ""
    split: str = ""
    per_sample: str = ""
    direction: str = ""
    test_size: str = ""
    state: str = ""
    spreads: dict[str, str] = field(default_factory=dict)
    run_count: str = ""
    unsettled: list[str] = field(default_factory=list)

    def of(self, role: str) -> list[str]:
        return [name for name, (own, _) in self.given.items() if own == role]

    def keep_values(self, *no_roles: str) -> None:
        """Leaves out the values that have one of these roles by now."""
        self.values = tuple(name for name in self.values if self.given[name][0] not in no_roles)

    def drop_values(self, names: Collection[str]) -> None:
        self.values = tuple(name for name in self.values if name not in names)

    def first(self, role: str) -> str:
        """The first column of a role; "" where there is none."""
        return next(iter(self.of(role)), "")

    def give(self, role: str, names: Sequence[str], reason: str) -> None:
        for name in names:
            self.given[name] = (role, reason)


def roles_of(frame: Frame, told: Options, several_files: bool) -> Roles:
    """The role of every column. ValueError, a question, where the arm cannot be known."""
    roles = Roles()
    _told_roles(frame, told, roles)
    _count_answers(frame)
    _number_steps(frame)
    numeric = {name: _is_numeric(name, column) for name, column in frame.columns.items()}
    for name, column in frame.columns.items():
        if name not in roles.given and name != "file":
            roles.given[name] = frame.roles.get(name) or _by_name(
                name, column, numeric[name], frame
            )
    for name in told.named:
        if numeric.get(name) and name not in frame.roles and roles.given[name][0] != "value":
            roles.given[name] = ("metric", NAMED)
    _check_open(frame, told, roles)
    _settle_directions(roles)
    _spreads_of_others(frame, roles, numeric)
    _settle_run_count(frame, roles, numeric)
    _settle_values(frame, told, roles, numeric)
    _leave_out_derived(frame, roles)
    _settle_seed(frame, told, roles)
    roles.split = roles.first("split")
    _settle_tasks(frame, told, roles)
    _settle_settings(frame, roles)
    _settle_arm(frame, told, roles, several_files)
    _complete_columns(frame, roles, numeric)
    _leave_out_beside_arms(frame, told, roles)
    _settle_rest(frame, told, roles)
    if not roles.values:
        _measure_times(frame, roles)
    if not roles.values:
        raise ValueError(_no_values(frame, roles))
    return roles


def _measure_times(frame: Frame, roles: Roles) -> bool:
    """Whether times are the values, since nothing else was measured."""
    times = [
        name for name in roles.of("time")
        if _is_numeric(name, frame.columns[name]) and len(frame.columns[name].present()) > 1
        and not re.search(r"(start|end|creat|updat|stamp|date|heartbeat)", plain_name(name))
    ]  # fmt: skip
    roles.values = tuple(times) or roles.values
    roles.give("metric", times, "the only numbers are times")
    return bool(times)


# --- by option, name and cells --------------------------------------------------------------------


OPTIONS = {"arm": "--arm", "seed": "--seed", "block": "--block", "task": "--task-column",
           "metric": "--metric-column", "value": "--value", "scale": "--scale",
           "test_size": "--samples", "step": "--last", "runs": "--runs"}  # fmt: skip


def _told_roles(frame: Frame, told: Options, roles: Roles) -> None:
    """ValueError for a column that is not there."""
    for role, names in told.names.items():
        for name in names:
            if name in frame.columns:
                own = "count" if role == "runs" else role
                roles.given[name] = (own, f"told by {OPTIONS[role]}")
            elif role != "arm" or name != "columns":
                shown = ", ".join(each for each in [*frame.columns][:40] if each != "file")
                raise ValueError(f"there is no column {name!r} (of {shown})")
    roles.run_count = "".join(told.names.get("runs", ()))


def _count_answers(frame: Frame) -> None:
    """Makes true and false 1 and 0 in columns with the name of a metric, such as `success`."""
    numbers = {"true": 1, "false": 0}
    for name, column in frame.columns.items():
        if len(column.values) > MOST_ANSWERS or FLAGS.fullmatch(plain_name(name)):
            continue
        words = {text_of(value).lower() for value in column.present()}
        if words and words <= numbers.keys() and is_known(name):
            values = [numbers.get(text_of(value).lower(), value) for value in column.values]
            frame.columns[name] = recoded(values, column.codes)


def _is_numeric(name: str, column: Column) -> bool:
    """Whether a column holds numbers: half of its cells that are not missing, or one where the name
    is that of a metric; where it has none, the cells of such a name hold digits.
    """
    counts = column.counts()
    numbers = others = 0
    for value, cell, count in zip(column.values, column.cells, counts.tolist(), strict=True):
        if isinstance(value, list | dict | bool):
            others += count
        elif cell.value is not None or DIVERGED.fullmatch(str(value).strip()):
            numbers += count
        elif not is_missing(value):
            others += count
    is_metric = is_known(name) and plain_name(name) not in ARM_WORDS
    if not numbers:
        return is_metric and any(re.match(r"\W*\d", str(value)) for value in column.present()[:50])
    return numbers >= others or (is_metric and numbers * 5 >= others)


def _by_name(name: str, column: Column, is_numeric: bool, frame: Frame) -> tuple[str, str]:
    """A role by the name of a column, with a look at its cells; metric or text where it is open."""
    plain = plain_name(name)
    present = column.present()
    if not present:
        return "text", "no row has a value"
    if any(isinstance(value, list | dict) for value in present):
        listed = plain in ("correct", "per_sample", "scores") or plain.startswith("per_sample")
        if plain == "metrics" and isinstance(present[0], dict):
            return "value", "a metric each"
        return (
            ("per_sample", "lists of values of samples") if listed else ("text", "it holds lists")
        )
    if is_numeric and header_kind(name) and _hold_spreads(column):
        return "metric", "means, each with the spread that the header names"
    if plain in ("rank", "place", "position", "no") and is_numeric and _counts_rows(column):
        return "identifier", "a place in a list"
    if plain == "rank":  # of a list, perhaps with medals, or of a matrix
        is_place = 2 * len(present) > len(column)
        return ("identifier", "a place in a list") if is_place else ("setting", "by its name")
    if (is_numeric or all(map(CHANGED.match, map(text_of, present)))) and DERIVED.search(name):
        return "spread", "by its name: a difference of others"
    if is_numeric and DIFFERENCE.search(plain) and any(str(each)[:1] == "+" for each in present):
        return "spread", "by its name and signs: a difference of others"
    if not is_numeric and name != "table" and _are_metrics(present):
        return "metric", "its values are names of metrics"
    if not plain or re.fullmatch(r"unnamed_\d+|column_1|level_\d", plain):
        is_index = len(present) == len(column) and are_whole(column)
        if is_numeric and (is_index or _counts_rows(column)):
            return "identifier", "an index of rows"
        return ("metric", "numbers") if is_numeric else ("text", "")
    first = role_of_name(name)
    short = re.sub(r"\s*[\[(][^()\[\]]*[\])]$", "", name)
    if not first[0] and not is_numeric and short != name:
        return _by_name(short, column, is_numeric, frame)  # `Metric (statistic)`
    prefix = SETTING_PREFIX.match(name)
    if is_numeric and re.search(r"[^.]\.(n|count|support|std|stderr|num_\w+)$", name):
        return ("spread" if "std" in name[-6:] else "count"), "by the end of its name"
    is_number_of = name.startswith("#") and not is_known(name)  # `# Seen Samples (B)`
    if is_numeric and (is_number_of or (COUNTED.fullmatch(plain) and are_whole(column))):
        return "count", "by its name: a count"
    if not is_numeric and all(DATE.fullmatch(str(each).strip()) for each in present) and (
        len(present) > LEAST_DATES
    ):  # fmt: skip
        return "time", "dates"
    known = is_known(name) and is_numeric and not (prefix and prefix[0][-1] in "./")
    if not is_numeric and len(present) > 1 and all(PATH.fullmatch(str(each)) for each in present):
        return "identifier", "paths of files"
    if not is_numeric and all(str(value).lstrip()[:1] == "{" for value in present):
        return "setting", HOLDS_SETTINGS
    if SPLIT_NAME.fullmatch(plain) and _are_splits(present):
        return "split", "its values are splits of a test set"
    if known and (
        first[0] in ("", "per_sample", "metric", "text") or _is_metric_first(plain, first[0])
    ):
        return "metric", "by its name"
    is_setting = first[0] == "setting" and is_numeric
    if is_setting and METRIC_PREFIX.match(name) and not THRESHOLD.search(plain):
        return "metric", "by its prefix: a metric"
    if not first[0]:
        if prefix:
            return "setting", "by its prefix: a setting of the run"
        return ("metric", "numbers") if is_numeric else ("text", "")
    return _checked(first, column, is_numeric, name)


def _hold_spreads(column: Column) -> bool:
    """Whether most cells that are there have a second number, behind ± or in brackets."""
    cells = [cell for cell in column.cells if cell.value is not None]
    return 2 * sum(cell.spread is not None or cell.bracketed is not None for cell in cells) > len(
        cells
    )


def name_role(name: str) -> str:
    """What a metric is by its name where it is none: a count, a time, a spread, an identifier."""
    if header_kind(name):  # `acc (SD)`, whose cells have both
        name = re.split(r"[(\[±]", name)[0]
    plain = plain_name(name)
    if COUNTED.fullmatch(plain):
        return "count"
    if is_known(name) and not re.search(r"runtime|_time$|(^|_)(std|stderr)$", plain):
        return ""
    role, _ = role_of_name(name)
    return role.replace("_", " ") if role in ("count", "time", "spread", "identifier", "test_size",
                                              "step") else ""  # fmt: skip


def _is_metric_first(plain: str, role: str) -> bool:
    """Whether the name of a metric goes before a pattern that fits too: `inference_time`,
    `hd95`.
    """
    if role == "time":
        of_model = r"(inference|response|decode|generation|prediction|latency)"
        of_tracker = plain.startswith(("eval", "train", "test"))
        return re.search(of_model, plain) is not None or (
            plain.endswith(("per_second", "per_sec")) and not of_tracker
        )
    if NO_METRIC.match(plain) or THRESHOLD.search(plain):
        return False
    if role == "setting" and OPEN_SETTING.fullmatch(plain) and is_known(plain):
        return True  # `collision_rate`
    if role in ("spread", "setting", "count", "step"):
        facts = name_facts(plain)
        return facts.higher is not None and (
            facts.unit != "" or re.search(r"loss|rank|entropy|\d", plain) is not None
        ) and SPREAD_OF.search(plain) is None and SPREAD_BEFORE.match(plain) is None  # fmt: skip
    return False


def _checked(
    found: tuple[str, str], column: Column, is_numeric: bool, name: str
) -> tuple[str, str]:
    """A role by name, unless the cells say that it cannot be."""
    role, reason = found
    is_told = SETTING_PREFIX.match(name) is not None
    if role == "setting" and is_numeric and OPEN_SETTING.fullmatch(plain_name(name)) and (
        not is_told and are_measured(column)
    ):  # fmt: skip
        return "metric", "numbers that hardly repeat"
    if (
        role == "count"
        and is_numeric
        and not are_whole(column)
        and not re.search(r"(len|length|size|sizes|total)$|^[nkm]$", plain_name(name))
    ):
        return "metric", "numbers"
    if role in ("spread", "count", "test_size", "step", "time", "scale") and not is_numeric:
        if role in ("spread", "count", "test_size"):
            return "text", ""
        if role == "step" and not SETTING_PREFIX.match(name):
            return "text", ""
    if role == "seed" and is_numeric and not are_whole(column):
        return "metric", "numbers"
    if role == "state" and len(column.present()) > MOST_STATES:
        if plain_name(name).endswith("status"):
            return "text", ""
        return "task", "its values are names, not states of a run"
    if role == "task" and {str(each).lower() for each in column.present()} <= {"true", "false"}:
        return "text", ""
    if role == "task" and is_numeric and are_measured(column) and is_known(name):
        return "metric", "by its name: a metric of an arm"  # `loss_benchmark`
    if role == "task" and CROSSING.fullmatch(plain_name(name)) and (
        is_numeric or _are_people(name, column)
    ):  # fmt: skip
        return "identifier", reason
    if role == "step" and is_numeric and SETTING_PREFIX.match(name):
        return "setting", "by its prefix: a setting of the run"
    if role in ("metric", "text") and is_numeric:
        return "metric", "numbers"
    if role == "value" and not is_numeric:
        return "text", ""
    return role, reason


def is_tested_on(name: str) -> bool:
    """Whether a column numbers what one run is tested on: an episode, a question, no fold."""
    plain = plain_name(name)
    return CROSSING.fullmatch(plain) is not None and not re.search(r"fold|cv|split", plain)


def _are_people(name: str, column: Column) -> bool:
    """Whether a column numbers the people of a study: `S10`, `sub-03`."""
    of_people = plain_name(name) in ("subject", "participant", "patient")
    return of_people and all(NUMBERED.fullmatch(text_of(each)) for each in column.present())


def _counts_rows(column: Column) -> bool:
    """Whether a column of numbers is whole and rises from row to row, or begins anew."""
    numbers = column.numbers()
    if np.isnan(numbers).any() or (numbers != np.floor(numbers)).any():
        return False
    steps = np.diff(numbers)
    return bool(((steps == 1) | (steps < 0)).all())


def are_whole(column: Column) -> bool:
    """Whether the numbers of a column are whole."""
    numbers = [cell.value for cell in column.cells if cell.value is not None]
    return all(number == int(number) for number in numbers)


def _digits(column: Column) -> list[int]:
    """How many significant digits each distinct number of a column has, the fewest first."""
    texts = [f"{abs(cell.value):.6g}" for cell in column.cells if cell.value is not None]
    return sorted(len(re.sub(r"^[0.]+|\.|e.*", "", text).rstrip("0")) for text in texts)


def middle_digits(column: Column) -> int:
    """How many significant digits most distinct numbers of a column have, or fewer."""
    digits = _digits(column)
    return digits[len(digits) // 2] if digits else 0


def are_measured(column: Column) -> bool:
    """Whether numbers hardly repeat and most have several digits, as results have, not settings."""
    digits, rows = _digits(column), int(column.is_there().sum())
    least = 3 if rows >= LEAST_ROWS else 4
    middle = middle_digits(column)
    is_long = len(digits) >= LEAST_ROWS and middle > least + 1
    return is_long or (2 * len(digits) > rows > 1 and middle >= least)


def _are_metrics(present: Sequence[object]) -> bool:
    """Whether the values of a column are names of metrics."""
    known = [value for value in present if isinstance(value, str) and is_bare_metric(value)]
    return len(present) > 1 and len(known) * 5 >= 4 * len(present)


def _number_steps(frame: Frame) -> None:
    """Makes names of files that a training wrote at its steps the numbers in them."""
    for name, column in frame.columns.items():
        texts = [text_of(value) for value in column.values]
        found = [STEP_FILE.fullmatch(text) for text in texts]
        if len(found) > 1 and None not in found and len({one[1] for one in found if one}) == 1:
            frame.columns[name] = recoded([int(one[2]) for one in found if one], column.codes)
            frame.roles[name] = ("step", "names of the files of one training")
    first = next(iter(frame.columns))
    numbers = frame.columns[first].numbers()
    if is_known(first) and frame.rows >= LEAST_DATES and len(set(np.diff(numbers))) == 1 and (
        numbers[0] > 0 == numbers[0] % 1 and numbers[1] > numbers[0] + 1
    ):  # fmt: skip
        frame.roles[first] = ("step", "it rises evenly: its name is that of the other columns")


def _are_splits(present: Sequence[object]) -> bool:
    words = [re.split(r"[^a-z]+", str(value).lower()) for value in present]
    return len(present) <= 12 and all(set(word) & set(SPLITS) for word in words)


def _settle_directions(roles: Roles) -> None:
    roles.direction, roles.state = roles.first("direction"), roles.first("state")
    roles.test_size, roles.per_sample = roles.first("test_size"), roles.first("per_sample")
    for name in roles.of("direction")[1:]:
        roles.given[name] = ("text", "another column says the direction")
    for name in [name for name in roles.given if name.startswith("direction of ")]:
        del roles.given[name]


def _spreads_of_others(frame: Frame, roles: Roles, numeric: Mapping[str, bool]) -> None:
    """Columns whose name is that of another one and a word for a spread: `acc`, `acc_err`. A word
    that names what has a spread of its own, as in `pr_std` beside `pr_std_sd`, is none here.
    """
    plain = {plain_name(name): name for name in roles.given if numeric.get(name)}
    stems = {own: own[: found.start()] for own in plain if (found := SPREAD_OF.search(own))}
    alone = {own: own[len(stem) :] for own, stem in stems.items()
             if stem and not {stem, f"{stem}_mean"} & plain.keys()}  # fmt: skip
    words = {alone[stem] for stem in stems.values() if stem in alone}
    for own in [own for own, word in alone.items() if word in words]:
        roles.given[plain[own]] = ("metric", "numbers")
    order = [name for name in plain.values() if roles.given[name][0] in ("metric", "value")]
    names = list(frame.columns)
    for own, name in plain.items():
        role, reason = roles.given[name]
        if role not in ("metric", "count", "setting", "spread") or reason == OF_LM_EVAL:
            continue
        found = SPREAD_OF.search(own)
        base = own[: found.start()].rstrip("_") if found else SPREAD_BEFORE.sub("", own)
        means = (f"{word}_{base}" for word in ("mean", "avg", "average"))
        candidates = (base, f"{base}_mean", *means, f"{base}_avg")
        of = next((plain[each] for each in candidates if each != own and each in plain), None)
        kind = spread_kind(name)
        if not base and kind is not None and name not in order:  # `std`, of the one to its left
            left = [each for each in order if names.index(each) < names.index(name)]
            of = left[-1] if left else of
        if of is None or base == own or _are_complements(frame.columns[of], frame.columns[name]):
            continue
        if kind is not None:
            roles.spreads.setdefault(of, name)
        if roles.given[of][0] in ("metric", "value"):  # a setting may be an arm by the cells
            roles.given[name] = ("spread", f"beside {of!r}: not a value of its own")


def _settle_run_count(frame: Frame, roles: Roles, numeric: Mapping[str, bool]) -> None:
    """The column that counts the runs of each mean, where means have spreads. What may name a seed,
    as `seeds`, counts them where all rows have the same.
    """
    for name in roles.given:
        column, role = frame.columns[name], roles.given[name][0]
        if roles.run_count or not numeric[name] or not counts_runs(name) or not are_whole(column):
            continue
        has_spreads = bool(roles.spreads) or any(
            cell.spread is not None for each in numeric for cell in frame.columns[each].cells
        )
        is_clear = role == "count" or len(column.present()) == 1
        texts = [each for each in roles.given if not numeric[each]]
        is_clear |= bool(roles.spreads) and not _has_repeats(frame, texts)
        if role in ("count", "seed", "setting", "metric") and is_clear and (
            has_spreads and np.nanmin(column.numbers()) >= 1
        ):  # fmt: skip
            roles.run_count = name
            roles.give("count", [name], "by its name: of how many runs a mean is")


def _complete_columns(frame: Frame, roles: Roles, numeric: Mapping[str, bool]) -> None:
    """Makes columns arms that have by chance the name of a setting or a count, where the arms are
    columns: right of the first arm, with results of the size of the others.
    """
    sizes = [frame.columns[name].numbers() for name in roles.values if roles.arms_are_columns]
    names = list(frame.columns)
    for name in names[names.index(roles.values[0]) :] if len(sizes) > 1 else ():
        column, (role, reason) = frame.columns[name], roles.given.get(name, ("", ""))
        is_open = role in ("setting", "count") and reason.startswith("by its name")
        if is_open and numeric[name] and are_measured(column) and (
            min(map(np.nanmin, sizes)) <= np.nanmedian(column.numbers())
            <= max(map(np.nanmax, sizes))
        ):  # fmt: skip
            roles.values = (*roles.values, name)
            roles.give("metric", [name], "numbers")


def _leave_out_derived(frame: Frame, roles: Roles) -> None:
    """Columns that are the difference of two others in every row, and how many of a total passed
    beside another result.
    """
    if not roles.is_long and any(plain_name(name) == "total" for name in roles.of("count")):
        passed = [
            name for name in roles.values if PASSED.fullmatch(plain_name(name))
            and are_whole(frame.columns[name]) and np.nanmax(frame.columns[name].numbers()) > 1
        ]  # fmt: skip
        if len(passed) < len(roles.values):
            roles.give("count", passed, "how many of 'total'")
            roles.drop_values(passed)
    if not 1 < len(roles.values) <= MOST_DERIVED or roles.is_long or frame.rows < 3:
        return
    numbers = {name: frame.columns[name].numbers() for name in roles.values}
    sizes = [frame.columns[each].numbers() for each in (*roles.of("count"), *roles.of("setting"))
             if each in frame.columns and are_whole(frame.columns[each])]  # fmt: skip
    for name, other in itertools.permutations(roles.values, 2):
        whole = are_whole(frame.columns[name]) and np.nan_to_num(numbers[name]).max(initial=0) > 1
        if whole and any(_is_share(numbers[name], size, numbers[other]) for size in sizes):
            roles.given[name] = ("count", f"whose share is {other!r}")
    roles.keep_values("count")
    for name in roles.values[2:]:
        before = roles.values[: roles.values.index(name)]
        for one, other in itertools.permutations(before, 2):
            gap = numbers[one] - numbers[other]
            off = np.abs(numbers[name] - gap)
            there = ~np.isnan(off)
            size = numbers[one][there].std() if there.sum() > 2 else 0.0
            if size > 0 and off[there].max() <= 0.01 * size and gap[there].std() > 0:
                roles.given[name] = ("spread", f"{one} less {other}: no value of its own")
    roles.keep_values("spread")


def _is_share(count_R: FloatArray, size_R: FloatArray, share_R: FloatArray) -> bool:
    """Whether shares or percentages are, in every row, those of counts of a size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exact_R = count_R[:MOST_CHECKED] / size_R[:MOST_CHECKED]
    share_R = share_R[:MOST_CHECKED]
    there_R = np.isfinite(exact_R) & np.isfinite(share_R)
    exact_R, share_R = exact_R[there_R], share_R[there_R]
    if len(exact_R) < 3 or np.ptp(exact_R) == 0:
        return False
    return any(np.allclose(share_R, size * exact_R, 0, 0.001 * size) for size in (1, 100))


def _quotient(name: str, numbers: Mapping[str, FloatArray]) -> str:
    """The two columns of whose values a column is the quotient in every row; "" for none."""
    for one, other in itertools.permutations((each for each in numbers if each != name), 2):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = numbers[one] / numbers[other]
        there = np.isfinite(ratio) & np.isfinite(numbers[name])
        off = np.abs(numbers[name][there] - ratio[there])
        is_varied = there.sum() > 2 and np.ptp(ratio[there]) > 0
        if is_varied and (off <= NEAR * np.abs(ratio[there])).all():
            return f"{one} over {other}"
    return ""


def _leave_out_beside_arms(frame: Frame, told: Options, roles: Roles) -> None:
    """Columns beside arms as columns that are a quotient of two of them, in one row alone, or a
    thousandth of most others.
    """
    if not roles.arms_are_columns or len(roles.values) < 3 or "value" in told.names:
        return
    numbers = {name: frame.columns[name].numbers() for name in roles.values}
    counts = {name: int((~np.isnan(own)).sum()) for name, own in numbers.items()}
    sizes = {name: float(np.nanmedian(np.abs(own))) for name, own in numbers.items()}
    middle = float(np.median([*sizes.values()]))
    for name in roles.values if len(roles.values) <= MOST_DERIVED else ():
        if name == told.baseline:
            continue
        if counts[name] == 1 and sorted(counts.values())[-2] > 2:
            roles.given[name] = ("setting", "in one row alone")
        elif 0 < LIKE_TASKS * sizes[name] < middle:
            roles.given[name] = ("setting", "a thousandth of most other columns")
        elif DERIVED_WORDS.search(plain_name(name)) and (of := _quotient(name, numbers)):
            roles.given[name] = ("spread", f"{of}: no value of its own")
    roles.keep_values("setting", "spread")


def _are_complements(one: Column, other: Column) -> bool:
    """Whether two columns sum to 1 or 100: an accuracy and its error."""
    sums = one.numbers() + other.numbers()
    sums = sums[~np.isnan(sums)]
    return len(sums) > 1 and any(
        bool((np.abs(sums - whole) < 0.002 * whole).all()) for whole in (1, 100)
    )


# --- values ---------------------------------------------------------------------------------------


def _settle_values(frame: Frame, told: Options, roles: Roles, numeric: Mapping[str, bool]) -> None:
    """Which columns hold the values: one for all metrics (long), or one for each (wide)."""
    metrics = roles.of("metric")
    names = [
        name for name in metrics if not numeric[name] or frame.roles.get(name, ("",))[0] == "metric"
    ]
    if "metric" in told.names:
        names = list(told.names["metric"])
    values = [name for name in metrics if name not in names]
    for name in [each for each in names if values and len(frame.columns[each].present()) < 2]:
        is_told = "metric" in told.names or frame.roles.get(name, ("",))[0] == "metric"
        is_name = any(is_known(text_of(each)) for each in frame.columns[name].present())
        if not is_told and (len(values) > 1 or not is_name):
            names.remove(name)  # one name beside several columns of values says nothing
            roles.given[name] = ("text", "the same in every row")
    for name in names if "metric" not in told.names and sum(map(is_known, values)) > 1 else ():
        if name not in frame.roles and not _are_metrics(frame.columns[name].present()):
            roles.given[name] = ("text", "")  # a tag of runs, not of metrics that stand as columns
    alone = values[0] if len(values) == 1 and not roles.of("value") else ""
    if is_known(alone) and not all(map(QUALIFIERS.fullmatch, plain_name(alone).split("_"))):
        for name in names if "metric" not in told.names else ():
            if name not in frame.roles and not _are_metrics(frame.columns[name].present()):
                roles.given[name] = ("task", f"the values are of {alone!r}")  # as a reference
    names = [name for name in names if roles.given[name][0] not in ("text", "task")]
    listed = list(roles.of("value"))
    if "value" in told.names:
        kept = list(told.names["value"])
        for name in values:
            roles.given[name] = ("setting", "another column was told by --value")
        roles.metric = tuple(names)
        roles.values = tuple(kept)
        roles.is_long = len(kept) == 1 and (
            bool(names) or plain_name(kept[0]) in ("value", "score")
        )
        return
    dicts = [name for name in listed if plain_name(name) == "metrics"]
    long = [name for name in listed if name not in dicts]
    if dicts:
        roles.values, roles.is_long, roles.metric = (dicts[0],), True, tuple(names)
        for name in (*values, *long):
            roles.given[name] = ("setting", f"{ELSEWHERE} the column of metrics")
        return
    if long and (names or not values):
        roles.values, roles.is_long, roles.metric = (long[0],), True, tuple(names)
        for name in (*long[1:], *values):
            roles.given[name] = ("setting", f"{ELSEWHERE} {long[0]!r}")
        return
    for name in long:
        roles.given[name] = ("metric", "numbers")
    roles.metric = tuple(names)
    roles.values = tuple(name for name in roles.of("metric") if name not in names)
    parts = [
        name for name in roles.values if roles.given[name] == ("metric", "numbers")
        and CROSSING.fullmatch(plain_name(name)) and are_whole(frame.columns[name])
    ]  # fmt: skip
    if len(parts) < len(roles.values):  # a number of a fold is no result
        roles.give("identifier", parts, "by its name: numbers what is tested on")
        roles.drop_values(parts)
    roles.is_long = bool(names) and len(roles.values) == 1


def _settle_seed(frame: Frame, told: Options, roles: Roles) -> None:
    """The seed; several that vary are one together."""
    names = roles.of("seed")
    if "seed" in told.names:
        for name in [each for each in names if each not in told.names["seed"]]:
            roles.given[name] = ("identifier", "another column was told by --seed")
        names = list(told.names["seed"])
    else:
        for name in [each for each in names if len(frame.columns[each].present()) < 2]:
            if len(names) > 1:
                roles.given[name] = ("setting", "the same in every row")
                names.remove(name)
    for name in [each for each in frame.columns if plain_name(each) == "run"]:
        column, role = frame.columns[name], roles.given.get(name, ("",))[0]
        is_free = role in ("metric", "text", "count") or roles.given[name][1].startswith(ELSEWHERE)
        is_free &= name not in told.names.get("arm", ())
        if "seed" not in told.names and is_free and _is_numeric(name, column) and are_whole(column):
            roles.drop_values([name])
            roles.given[name] = ("seed", COUNTER)
            if names:
                roles.given[name] = ("identifier", "counts runs that have a seed too")
            else:
                names = [name]
    if any(roles.given[name][1] != COUNTER for name in names):  # a seed pairs, a counter does not
        for name in [each for each in names if roles.given[each][1] == COUNTER]:
            if frame.rows == distinct(group_codes(frame, [n for n in names if n != name])):
                names.remove(name)
                roles.given[name] = ("identifier", "counts runs that have a seed too")
    roles.seed = tuple(names)
    roles.paired = any(roles.given[name][1] != COUNTER for name in names)


def _settle_tasks(frame: Frame, told: Options, roles: Roles) -> None:
    """The parts of the task: those that vary."""
    if "task" in told.names:
        are_levels = all(frame.roles.get(each, ("",))[0] == "open" for each in told.names["task"])
        roles.task = told.names["task"]
        for name in [each for each in roles.of("task") if each not in told.names["task"]]:
            if are_levels and name in frame.roles:  # beside a level of keys that was asked for
                roles.task = (*roles.task, name)
                continue
            roles.given[name] = ("setting", "another column was told by --task-column")
            roles.unsettled.append(name)
        return
    names = roles.of("task")
    varying = [name for name in names if len(frame.columns[name].present()) > 1]
    kept = varying or names[:1]
    for name in kept:  # `key` and `dataset` that say the same are one
        codes = [frame.columns[each].codes for each in (name, *roles.task)]
        if any(are_same_groups(codes[0], other) for other in codes[1:]):
            roles.given[name] = ("text", "it says the same as another column of the task")
        else:
            roles.task = (*roles.task, name)
    for name in names:
        if name not in kept:
            roles.given[name] = ("task", "the same in every row")


def _keep_values(frame: Frame, roles: Roles) -> None:
    """The values without those that became settings. Where none is left, times were measured; or
    numbers that nothing changes are values all the same.
    """
    kept = tuple(name for name in roles.values if roles.given[name][0] != "setting")
    if not kept and roles.values and not _measure_times(frame, roles):
        roles.give("metric", roles.values, "numbers")
    roles.values = kept or roles.values


def _settle_settings(frame: Frame, roles: Roles) -> None:
    """Columns of numbers with an unknown name that hold the same in every row, or round numbers
    left of all known metrics, which have more digits.
    """
    known = [name for name in roles.values if is_known(name) and are_measured(frame.columns[name])]
    names = list(frame.columns)
    left = names[: names.index(known[0])] if known and not frame.history else []
    for name in roles.values:
        column = frame.columns[name]
        if (
            roles.is_long
            or len(roles.values) == 1
            or roles.given[name][1].startswith("told")
            or is_known(name)
        ):
            continue
        if len(column.present()) == 1 and frame.rows > 2 and column.is_there().all():
            roles.given[name] = ("setting", "the same in every row")
        is_round = max(_digits(column), default=0) <= ROUND
        is_even = 2 * len(column.present()) <= frame.rows or (np.diff(column.numbers()) > 0).all()
        if name in left and is_round and is_even and not CROSSING.fullmatch(plain_name(name)):
            roles.given[name] = ("setting", "round numbers left of the metrics")
    _keep_values(frame, roles)


# --- the arm --------------------------------------------------------------------------------------


def _check_open(frame: Frame, told: Options, roles: Roles) -> None:
    """ValueError, a question, where a form leaves open whether a column names arms or tasks."""
    for name in roles.of("open"):
        if "arm" in told.names or "task" in told.names:
            role = "task" if "arm" in told.names else "arm"
            is_level = roles.given[name][1].startswith(TWO_LEVELS)
            roles.given[name] = (role, "the other level of keys") if is_level else ("text", "")
            continue
        raise ValueError(
            f"{roles.given[name][1]}: is it the arm (--arm '{name}') or the task "
            f"(--task-column '{name}')?"
        )


def _settle_arm(frame: Frame, told: Options, roles: Roles, several_files: bool) -> None:
    if "arm" in told.names:
        if told.names["arm"] == ("columns",):
            roles.arms_are_columns = True
            _leave_out_beside_arms(frame, told, roles)
            _check_label(frame, roles)
        else:
            roles.arm = told.names["arm"]
            roles.drop_values(roles.arm)
            for name in roles.arm:
                if name == "file":
                    roles.given["file"] = ("arm", "told by --arm")
        return
    if told.baseline is not None and _settle_baseline(frame, told.baseline, roles, several_files):
        return
    if known := roles.of("arm"):
        roles.arm = tuple(known[:1])
        if len(frame.columns[known[0]].present()) > 1 or not several_files:
            return
    several_files = several_files and not any("file" in names for names in told.names.values())
    if roles.metric and _are_columns_arms(frame, roles, several_files):
        roles.arms_are_columns = True
        return
    candidates = _candidates(frame, roles)
    counters = [
        n
        for n in roles.seed
        if roles.given[n][1] == COUNTER and not _are_whole_texts(frame.columns[n])
    ]
    if (
        not candidates and counters and not several_files
    ):  # trials that are called by their settings
        roles.seed = tuple(name for name in roles.seed if name not in counters)
        roles.paired = bool(roles.seed)
        roles.arm = (counters[0],)
        roles.give("arm", counters[:1], "the only column that tells arms")
        return
    if not candidates and _are_columns_arms(frame, roles, several_files):
        roles.arms_are_columns = True
        return
    chosen = _best(frame, roles, candidates)
    if chosen and told.pattern and several_files:  # it may be of the names of files
        names = map(text_of, frame.columns[chosen].present())
        chosen = chosen if any(re.search(told.pattern, name) for name in names) else None
    if chosen is None and several_files:
        roles.arm = ("file",)
        roles.given["file"] = ("arm", "the name of the file: no column names an arm")
        return
    if chosen is None and _are_columns_arms(frame, roles, several_files):
        roles.arms_are_columns = True
        return
    if chosen is None:
        roles.arm = _last_resort(frame, roles) or _constant_arm(frame, roles)
        return
    reason = "by its name" if plain_name(chosen) in ARM_WORDS else "the only column that tells arms"
    roles.arm = (chosen,)
    roles.drop_values(roles.arm)
    roles.give("arm", [chosen], reason)
    if plain_name(chosen) in OF_MODELS:
        for name in list(roles.given):
            if name != chosen and TOGETHER.fullmatch(plain_name(name)) and roles.given[name][0] in (
                "text", "setting", "metric") and name not in roles.metric and (
                len(frame.columns[name].present()) > 1 and (not _is_numeric(name,
                frame.columns[name]))
            ):  # fmt: skip
                roles.arm = (*roles.arm, name)
                roles.give("arm", [name], f"a part of the arm's name, beside {chosen!r}")


def _settle_baseline(frame: Frame, baseline: str, roles: Roles, several_files: bool) -> bool:
    """Whether the baseline tells the arm: it is a cell of one column, the header of a column of
    values, or a file.
    """
    no_arms = ("value", "direction", "state", "split", "time", "per_sample", "spread")
    no_names = (*roles.metric, *roles.seed, *filter(is_known, roles.values))
    found = [
        name for name, (role, _) in roles.given.items()
        if role not in no_arms and name not in no_names and name in frame.columns
        and any(text_of(value) == baseline for value in frame.columns[name].present())
    ]  # fmt: skip
    texts = [name for name in found if not _is_numeric(name, frame.columns[name])]
    found = texts or found
    if whole := [name for name in found if frame.columns[name].is_there().all()]:
        found = whole  # not one that only some rows have, as the experiment that one goes on from
    codes = [group_codes(frame, (name,)) for name in found]
    if found and all(are_same_groups(codes[0], other) for other in codes[1:]):
        words = {plain_name(name): name for name in found}
        name = next((words[word] for word in ARM_WORDS if word in words), found[0])
        roles.arm = (name,)
        roles.drop_values(roles.arm)
        roles.task = tuple(each for each in roles.task if each != name)
        roles.give("arm", [name], "it has the baseline")
        return True
    if not found and baseline in roles.values and len(roles.values) > 1 and not roles.is_long:
        roles.arms_are_columns = True
        return True
    if not found and several_files and baseline in map(text_of, frame.columns["file"].values):
        roles.arm = ("file",)
        roles.given["file"] = ("arm", "one of the files is the baseline")
        return True
    return False


def baseline_arm(arms: Sequence[str], baseline: str) -> str | None:
    """The arm that a baseline means: of its name, or the only one whose name it begins, where
    several columns name an arm.
    """
    begun = [arm for arm in arms if arm.startswith(f"{baseline} ")]
    return baseline if baseline in arms else begun[0] if len(begun) == 1 else None


def _are_whole_texts(column: Column) -> bool:
    counted = re.compile(r"\D*\d+|[a-z]+(st|nd|rd|th|ond|rst)?")
    return all(counted.fullmatch(text_of(value).lower()) for value in column.present())


def _check_label(frame: Frame, roles: Roles) -> None:
    """ValueError, a question, where one of the columns that are arms has the name of a metric and
    the others have none: it may be what tells rows apart.
    """
    known = [name for name in roles.values if is_known(name)]
    if len(known) == 1 and 2 < len(roles.values) < MOST_NAMED_ARMS and frame.rows > 1:
        name = known[0]
        raise ValueError(
            f"is {name!r} ({values_of(frame.columns[name])}) one of the arms, or what the rows "
            f"are of? "
            f"--task-column {name}, --seed {name} or --block {name}; or --value with the columns "
            f"that "
            "are arms"
        )


def _candidates(frame: Frame, roles: Roles) -> list[str]:
    """Columns that could name the arm, the likeliest first, with two values or more."""
    words: dict[str, float] = {word: place for place, word in enumerate(ARM_WORDS)}
    named: list[tuple[float, str]] = []
    texts: list[str] = []
    stems = tuple(f"{task_stem(name)}_" for name in roles.values if not is_bare_metric(name))
    unknown = [name for name in roles.values if not is_known(name)]
    derived = [name for name in roles.values if DERIVED_WORDS.search(plain_name(name))]
    is_beside = len(unknown) > 1 and {*unknown, *derived} >= {*roles.values}
    for name, (role, _) in roles.given.items():
        if len(stems) > 1 and plain_name(name).startswith(stems):
            continue  # it stands beside a column of values: `A_config` beside `A_acc`
        column = frame.columns.get(name)
        is_counter = roles.given[name][1].startswith(("counts runs", HOLDS_SETTINGS))
        if column is None or is_counter or name in roles.metric:
            continue
        most = 0.25 * (plain_name(name) in words)
        if len(set(map(text_of, column.present()))) < 2 or _files_without(frame, column) > most:
            continue
        if not _is_numeric(name, column) and _refers(name, frame):
            continue  # to the row that it was compared with
        if 2 * int(column.is_there().sum()) < frame.rows:
            continue  # blank in most rows: a variation of what another column names
        plain, is_number = plain_name(name), _is_numeric(name, column)
        place = words.get(plain)
        if _are_people(name, column):
            continue  # not those who take part in a contest
        if is_beside and len(column.present()) == frame.rows and CROSSING.fullmatch(
            plain_name(name)
        ):  # fmt: skip
            continue  # each row is a case, and what is compared stands in columns
        if place is None and roles.given[name] == ("text", "") and plain.count("_") == 1:
            parts = [words[part] for part in plain.split("_") if part in words and part != "name"]
            place = parts[0] + 500 if parts else None
        if place is not None and role in ARM_ROLES:
            is_metric = role == "metric" and is_known(name) and is_number
            if not is_metric and (name not in roles.values or are_whole(column)):
                named.append((place + 1000 * is_number, name))
        elif roles.given[name] == ("text", "") and not is_number and not (
            roles.seed and len(column.present()) == frame.rows  # a text of each run
        ):  # fmt: skip
            texts.append(name)
    return [name for _, name in sorted(named)] + texts


def _refers(name: str, frame: Frame) -> bool:
    """Whether some rows name other rows: by what another column has of its own in each row."""
    own = {text_of(each) for each in frame.columns[name].present()}
    return any(
        each != name and len(column.present()) == frame.rows
        and own < {text_of(value) for value in column.present()}
        for each, column in frame.columns.items()
    )  # fmt: skip


def _files_without(frame: Frame, column: Column) -> float:
    """The share of the files that have no cell of a column."""
    if "file" not in frame.columns or len(frame.columns["file"].values) < 2:
        return 0.0
    return float((np.bincount(frame.columns["file"].codes, column.is_there()) == 0).mean())


def _best(frame: Frame, roles: Roles, candidates: Sequence[str]) -> str | None:
    """The candidate that makes arms of several runs where there are seeds, else the likeliest. A
    question where only several columns without a known name are left.
    """
    if not candidates:
        return None
    named = [name for name in candidates if set(plain_name(name).split("_")) & set(ARM_WORDS)]
    unnamed = [name for name in candidates if name not in named]
    if named:
        if roles.seed and len(candidates) > 1:
            seeds = group_codes(frame, roles.seed)
            for name in [*named, *unnamed]:
                if varies(group_codes(frame, (name,)), seeds):
                    return name
        return named[0]
    if len(unnamed) == 1:
        _check_blank(frame, roles, unnamed[0])
        return unnamed[0]
    blank = [name for name in unnamed if not name]
    if blank:
        return blank[0]
    finest = _finest(frame, roles, unnamed)
    if finest:
        return finest
    raise _which_arm(frame, roles, unnamed)


def _finest(frame: Frame, roles: Roles, names: Sequence[str]) -> str:
    """The column whose every name has one name in each of the others, where its runs alone have
    seeds of their own; "" where there is none.
    """
    for name in names if roles.seed else ():
        is_finest = not varies(group_codes(frame, (name,)), group_codes(frame, names))
        others = [each for each in names if each != name]
        repeats = [_has_repeats(frame, (each, *roles.seed)) for each in others]
        if is_finest and all(repeats) and not _has_repeats(frame, (name, *roles.seed)):
            return name
    return ""


def _has_repeats(frame: Frame, names: Sequence[str]) -> bool:
    return distinct(group_codes(frame, names)) < frame.rows


def _check_blank(frame: Frame, roles: Roles, name: str) -> None:
    """ValueError, a question, where rows and columns could both be the arms: a label without a name
    stands before several columns that are called neither like metrics nor like known data sets.
    """
    labels = {plain_name(text_of(value)) for value in frame.columns[name].present()}
    values = [plain_name(value) for value in roles.values]
    is_open = not name and len(values) > 1 and not roles.seed and not roles.is_long
    if not is_open or labels & set(BASELINES) or any(map(is_known, roles.values)):
        return
    if any(DATA_SETS.search(value) or SETTING_PREFIX.match(value) for value in values):
        return
    shown = ", ".join(roles.values[:SHOWN])
    raise ValueError(
        f"are the arms the rows ({values_of(frame.columns[name])}) or the columns ({shown})? say "
        "--arm '' or --arm columns"
    )


def of_each_row(frame: Frame, roles: Roles) -> tuple[str, ...]:
    """An identifier that each row has its own value of, as the number of a trial."""
    alone = (
        name for name in roles.of("identifier")
        if name in frame.columns and len(frame.columns[name].present()) == frame.rows
    )  # fmt: skip
    return tuple(itertools.islice((name for name in alone if name not in ("", "file")), 1))


def _which_arm(frame: Frame, roles: Roles, names: Sequence[str]) -> Open:
    shown = "; ".join(f"{name!r} ({values_of(frame.columns[name])})" for name in names[:6])
    ways = [Way("all that differ, together", {"arm": tuple(names)}, "arm")]
    ways += [Way(f"to compare {name!r}", {"arm": (name,)}, "block") for name in names[:SHOWN]]
    if not roles.seed and (rows := of_each_row(frame, roles)):
        what = "each row a run, as of a search"
        ways += [Way(what, {"arm": (name,), "seed": rows}) for name in names[:SHOWN]]
    return Open(
        f"which column names the arm? --arm COLUMN, or several that name it together: {shown}; ",
        ways, names,
    )  # fmt: skip


def values_of(column: Column) -> str:
    """Some values of a column for a message."""
    texts = list(dict.fromkeys(map(text_of, column.present())))
    shown = ", ".join(text if len(text) <= 30 else f"{text[:29]}…" for text in texts[:SHOWN])
    return f"{shown}, …" if len(texts) > SHOWN else shown


def _are_columns_arms(frame: Frame, roles: Roles, several_files: bool) -> bool:
    """Whether the arms stand as columns: two or more columns of numbers without names of metrics,
    beside rows that are seeds, tasks or metrics.
    """
    values = list(roles.values)
    if roles.is_long or len(values) < 2 or several_files:
        return False
    if roles.metric and not any(is_known(name) for name in values):
        return True  # the rows are of metrics
    stems = {task_stem(name) for name in values}
    if roles.task and len(set(map(deciding_words, values))) == 1 < len(stems) == len(values) and (
        deciding_words(values[0]) and not any(is_bare_metric(name) for name in values)
        and not any(DATA_SETS.search(stem) or set(stem.split("_")) & STAGES for stem in stems)
    ):  # fmt: skip
        return True  # the same metric of each
    if any(is_known(name) and is_bare_metric(name) for name in values):
        return False
    if any(SETTING_PREFIX.match(name) or METRIC_PREFIX.match(name) for name in values):
        return False
    known = [name for name in values if name_facts(name).higher is not None]
    if known and _have_settings(frame, roles):
        return False
    if 3 * len(known) > len(values) * bool(roles.task):  # a name may hold a metric's word by chance
        return False
    if not are_of_one_size(frame, roles):
        return False
    if all(DATA_SETS.search(plain_name(name)) for name in values):
        return False
    if frame.history:
        return False
    return bool(roles.task or roles.metric or roles.seed)


def _have_settings(frame: Frame, roles: Roles) -> bool:
    """Whether settings vary inside of one seed and task, so that they are what is compared."""
    groups = group_codes(frame, (*roles.seed, *roles.task))
    return any(
        2 * len(frame.columns[name].present()) <= frame.rows
        and varies(groups, group_codes(frame, (name,)))
        for name in roles.of("setting")
    )


def are_of_one_size(frame: Frame, roles: Roles) -> bool:
    """Whether the columns of values could be one metric of several arms, by their size."""
    sizes = [float(np.nanmedian(np.abs(frame.columns[name].numbers()))) for name in roles.values]
    return max(sizes) <= (LIKE_TASKS if roles.task else LIKE_RUNS) * max(min(sizes), 1e-12)


def _last_resort(frame: Frame, roles: Roles) -> tuple[str, ...]:
    """A setting or identifier that alone tells rows apart; () where there is one arm."""
    if frame.history:
        return ()
    varying = [
        name
        for name, (role, _) in roles.given.items()
        if role == "setting" and name in frame.columns and len(frame.columns[name].present()) > 1
    ]
    varying = [name for name in varying if roles.given[name][1] != HOLDS_SETTINGS]
    counts = {name: len(frame.columns[name].present()) for name in varying}
    varying = [
        name for name in varying if 2 * counts[name] <= frame.rows or frame.rows < LEAST_ROWS
    ]
    if len(varying) == 1:
        roles.give("arm", varying, "the only column that tells rows apart")
        return (varying[0],)
    if len(varying) > 1:
        raise _which_arm(frame, roles, varying)
    identifiers = [
        name
        for name, (role, _) in roles.given.items()
        if role == "identifier" and len(frame.columns[name].present()) > 1
        and plain_name(name) in ("index", "run_id", "id", "trial_id", "number", "path", "filename",
                                 "url", "file", "no", "idx", "year")
    ]  # fmt: skip
    if identifiers:
        roles.give("arm", identifiers[:1], "no other column names an arm")
        return (identifiers[0],)
    return ()


def _constant_arm(frame: Frame, roles: Roles) -> tuple[str, ...]:
    """A column that by its name is the arm, although all rows have the same."""
    words = {plain_name(name): name for name in roles.given if name in frame.columns}
    name = next((words[word] for word in ARM_WORDS if word in words), None)
    if name is None or name in roles.values or roles.given[name][0] != "text":
        return ()
    roles.give("arm", [name], "by its name")
    return (name,)


def _settle_runs(frame: Frame, roles: Roles) -> None:
    """Columns that name runs: each value belongs to one arm, or the same ones count those of
    all.
    """
    if not roles.arm or "file" in roles.arm:
        return
    all_arms = group_codes(frame, roles.arm)
    is_row = np.zeros(frame.rows, bool)
    for name in roles.arm:
        texts = frame.columns[name].texts()
        is_row |= np.array([text.lower() not in NO_ARM for text in texts.values], bool)[texts.codes]
    arms = all_arms[is_row]
    for name, (role, _) in list(roles.given.items()):
        if role not in ("text", "identifier") or name in roles.arm or name not in frame.columns:
            continue
        column = frame.columns[name].texts().taken(is_row)
        if not RUN_NAMES.fullmatch(plain_name(name)) or len(column.present()) < 2:
            continue
        there = column.is_there()
        tasks = group_codes(frame, roles.task)[is_row][there]
        spans_tasks = distinct(tasks) < 2 or varies(column.codes[there], tasks)
        if not varies(column.codes[there], arms[there]):
            roles.given[name] = ("identifier", "names the runs")
            if not roles.seed and not roles.runs and column.is_there().all() and (
                distinct(column.codes) > distinct(arms) and spans_tasks
            ):  # fmt: skip
                roles.runs = name
        elif plain_name(name) in ("run", "runs") and not roles.seed:
            roles.given[name] = ("seed", COUNTER)
            roles.seed, roles.paired = (name,), False


def is_design(column: Column, arms_N: Array) -> bool:
    """Whether most arms with several values of a column have the same ones: what the experiment
    chose, not what it found. Of one arm: whether each value is there twice.
    """
    there = column.is_there()
    present, arms = np.unique(arms_N[there], return_inverse=True)
    if not len(present) or len(present) * len(column.values) > MOST_PATTERN:
        return False
    counts = np.bincount(arms * len(column.values) + column.codes[there],
                         minlength=len(present) * len(column.values))  # fmt: skip
    table = counts.reshape(len(present), -1) > 0
    table = table[table.sum(axis=1) > 1]
    if len(present) == 1:
        return len(table) == 1 and 2 * int(table.sum()) <= int(there.sum())
    alike = np.unique(table, axis=0, return_counts=True)[1]
    return bool(len(alike) and alike.max() > 1 and 2 * alike.max() > alike.sum())


def were_counted(column: Column, arms_N: Array, roles: Roles) -> bool:
    """Whether, where seeds tell the runs of an arm apart, some value of a column is in an arm much
    more often than another one, as in what was counted and not chosen.
    """
    counts = np.unique(np.stack([arms_N, column.codes]), axis=1, return_counts=True)[1]
    return bool(roles.seed) and bool(counts.max() > UNEVEN * counts.min())


def _crosses_all(column: Column, frame: Frame, roles: Roles) -> bool:
    """Whether a few whole numbers, not all of them 0 and 1, are each as often in every run of every
    arm: an experiment chose them, whatever the name of the column.
    """
    if not roles.seed or frame.rows < LEAST_ROWS or not are_whole(column):
        return False
    if not column.is_there().all() or np.nanmax(column.numbers()) <= 1:
        return False
    runs = group_codes(frame, (*roles.arm, *roles.seed))
    cells = np.bincount(runs * len(column.values) + column.codes)
    count = distinct(column.codes)
    full = count * distinct(runs)
    return count > 1 and bool((cells > 0).sum() == full and cells.max() * full == frame.rows)


def _differs_by_seed(column: Column, frame: Frame, roles: Roles) -> bool:
    """Whether numbers of several digits are other ones for other seeds, which several runs share:
    they were measured.
    """
    if are_whole(column) or middle_digits(column) < LEAST_DIGITS:
        return False
    seeds, runs = group_codes(frame, roles.seed), group_codes(frame, (*roles.arm, *roles.seed))
    count, full = distinct(seeds), distinct(column.codes) * distinct(seeds)
    pairs = pairs_of(column.codes, seeds).shape[1]
    return distinct(runs) >= 2 * count and bool(pairs < CROSSED * full)


def _differs_by_arm(column: Column, arms: Integers) -> bool:
    """Whether numbers of several digits vary in an arm and are other ones in other arms."""
    if are_whole(column) or middle_digits(column) < LEAST_DIGITS:
        return False
    count, pairs = distinct(arms), pairs_of(arms, column.codes).shape[1]
    return bool(count < pairs < CROSSED * count * distinct(column.codes))


def _settle_design(frame: Frame, roles: Roles) -> None:
    """Columns of numbers without the name of a metric that the experiment chose: the same ones, as
    often, in every arm; or, beside a known metric, so few that each is there four times.
    """
    open_values = [name for name in roles.values if roles.given[name] == ("metric", "numbers")]
    has_known = len(open_values) < len(roles.values)
    if roles.is_long or roles.arms_are_columns or not roles.arm:
        return
    for name in roles.values:
        if is_known(name) and has_known and _crosses_all(frame.columns[name], frame, roles):
            roles.given[name] = ("setting", "each of its few numbers is as often in every run")
    arms = group_codes(frame, roles.arm)
    for name in open_values:
        if any(cell.is_percent for cell in frame.columns[name].cells):
            continue  # no setting is written so
        rows, values = int(frame.columns[name].is_there().sum()), len(frame.columns[name].present())
        is_few = has_known and rows >= LEAST_ROWS and 4 * values <= rows and not frame.history
        is_few &= not _differs_by_seed(frame.columns[name], frame, roles)
        is_few &= not _differs_by_arm(frame.columns[name], arms)
        is_few |= distinct(arms) > 1 and is_design(frame.columns[name], arms)
        if is_few and not were_counted(frame.columns[name], arms, roles):
            roles.given[name] = ("setting", "the same few numbers in every arm")
    _keep_values(frame, roles)


def _join_nested(frame: Frame, told: Options, roles: Roles) -> None:
    """Makes tasks parts of the block where each block lies in one of several tasks, as pictures in
    their data sets: no run has two tasks, so that an average over them would be of none.
    """
    is_open = not roles.is_long or bool(roles.metric)  # a task may be a metric where none is named
    if not roles.block or not roles.task or "task" in told.names or not is_open:
        return
    tasks, blocks = group_codes(frame, roles.task), group_codes(frame, roles.block)
    texts = {text_of(each) for name in roles.task for each in frame.columns[name].present()}
    count = distinct(tasks)
    if count < 2 or varies(blocks, tasks) or distinct(blocks) < 2 * count or texts & {*told.named}:
        return
    roles.block = (*roles.task, *roles.block)
    roles.give("block", roles.task, "each block lies in one of them")
    roles.task = ()


def _settle_rest(frame: Frame, told: Options, roles: Roles) -> None:
    """Steps, scales, blocks, and what is left: a text, or a column that nothing needs yet."""
    _settle_runs(frame, roles)
    _settle_design(frame, roles)
    roles.block = told.names.get("block", ())
    roles.drop_values(roles.block)
    _join_nested(frame, told, roles)
    steps = roles.of("step")
    if "step" in told.names:
        roles.step = told.names["step"][0]
        roles.give("step", [roles.step], "told by --last: the last row of each run")
        for name in [each for each in steps if each != roles.step]:
            roles.given[name] = ("step", "another column was told by --last")
    elif steps:
        roles.step = frame.history if frame.history in steps else steps[0]
    if "scale" in told.names:
        roles.scale = told.names["scale"]
        if "file" in roles.scale:
            roles.given["file"] = ("scale", "told by --scale")
        roles.step = "" if roles.step in roles.scale else roles.step
    else:
        scales = [name for name in roles.of("scale") if len(frame.columns[name].present()) > 1]
        roles.scale = tuple(scales[:1])
        for name in roles.of("scale"):
            if name not in roles.scale:
                roles.given[name] = (
                    "setting",
                    "the same in every row, or another one is the scale",
                )
    roles.drop_values((*roles.scale, *roles.block))
    if roles.arms_are_columns and not roles.task:
        labels = []
        for name in [each for each, given in roles.given.items() if given == ("text", "")]:
            words = {text_of(each).lower() for each in frame.columns[name].present()}
            if not CROSSING.fullmatch(plain_name(name)) and not words <= {"true", "false"}:
                labels.append(name)
        if len(labels) == 1:
            roles.task = (labels[0],)
            roles.give("task", labels, "what the rows are of, beside arms as columns")
    if roles.arm and roles.task:
        arms = group_codes(frame, roles.arm)
        for name in roles.task:
            codes = group_codes(frame, (name,))
            if distinct(codes) > 1 and are_same_groups(codes, arms):
                roles.task = tuple(each for each in roles.task if each != name)
                roles.given[name] = ("text", "another name of the arm")
    if roles.arm and not roles.is_long:
        _settle_constants(frame, roles)
    arms = group_codes(frame, roles.arm if roles.of("count") else ())
    for name in list(frame.columns):
        role, reason = roles.given.get(name, ("text", ""))
        plain = plain_name(name)
        if name == "file" and name not in roles.given:
            roles.given[name] = ("identifier", "the name of the file")
        elif (
            role == "setting" and reason != HOLDS_SETTINGS
            and not _differs_by_seed(frame.columns[name], frame, roles)
        ) or (
            role == "count" and is_design(frame.columns[name], arms)
        ) or (role == "text" and not reason) or (
            roles.arms_are_columns and role in ("count", "setting", "identifier") and (
                reason.startswith("by its name"))
        ) or (
            role in ("arm", "task") and name not in (*roles.arm, *roles.task) and (
                reason != "the same in every row")
        ) or (
            CROSSING.fullmatch(plain) and role in ("identifier", "metric", "text", "task")
            and name not in roles.task and name not in (*roles.arm, *roles.seed)
        ):  # fmt: skip
            roles.unsettled.append(name)
            if role == "text" and not reason:
                roles.given[name] = ("text", "nothing needs it")
    roles.unsettled = list(dict.fromkeys(roles.unsettled))


def _settle_constants(frame: Frame, roles: Roles) -> None:
    """Columns of numbers with an unknown name that are the same in all runs of an arm and task."""
    groups = group_codes(frame, (*roles.arm, *roles.task))
    sizes = np.bincount(groups)
    if (sizes > 1).sum() < 2:
        return
    several = sizes[groups] > 1
    for name in roles.values:
        is_open = not is_known(name) and roles.given[name][1] != NAMED
        if is_open and not varies(groups[several], frame.columns[name].codes[several]):
            roles.given[name] = ("setting", "the same in every run of an arm")
    _keep_values(frame, roles)


def _no_values(frame: Frame, roles: Roles) -> str:
    what = "; ".join(f"{name}: {role}" for name, (role, _) in list(roles.given.items())[:40])
    if alone := [name for name in roles.of("spread") if _is_numeric(name, frame.columns[name])]:
        return (
            f"the only numbers are spreads by their names, {', '.join(alone[:SHOWN])}, and the "
            f"column of their means is missing; --value {quoted(alone[0])} compares them as values"
        )
    return (
        "there is no column of values, as none holds a number that could be one: name it with "
        "--value "
        f"(read as {what or ', '.join(frame.columns)})"
    )
