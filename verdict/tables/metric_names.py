"""Names of metrics: whether more or less is better, and which are shares of something.

The words are those of classification, retrieval, detection, segmentation, speech, generation,
language models, calibration, detection of outliers, regression, forecasting and serving. A name is
read from its end: `error_rate` is an error, `accuracy_loss` a loss, `rank_correlation` a
correlation.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from clipmill.manifests.metrics import METRICS

CACHED = 65_536  # names that each step of the reading asks for again
PREFIXES = re.compile(r"^(config|cfg|summary|params?|metrics?|hparams?|args|data|attributes)[./]+")
# Written with capitals they are counts of mistakes: false positives, switches of identity.
COUNTS_OF_MISTAKES = re.compile(
    r"#? ?(FPs?|FNs?|ID ?[sS][wW]?\.?|IDs|IDSW|Frag|FM|Miss(es)?|Sub|Del|Ins|S\.? ?Err)"
)
ARROWS_LESS = re.compile(r"[↓▼⬇]|\\downarrow|\b(lower|less|smaller) is better\b|\(-\)$", re.I)
ARROWS_MORE = re.compile(r"[↑▲⬆]|\\uparrow|\b(higher|more|larger|bigger) is better\b|\(\+\)$", re.I)

# Words that decide, as parts of a name between underscores.
LESS_WORDS = """
    loss losses nll perplexity ppl bpb bpc bpd error errors err errs rmse mse mae mape smape mase
    rmsle msle medae wape nrmse rse rrmse maxae wmape mdape logloss crossentropy xent ce bce fid kid
    lpips kld kl jsd mmd fvd fad sfid dists niqe brisque piqe hinge hamming fpr fnr far frr eer hter
    apcer bpcer acer cer wer per der ter mer wil ler ser ece mce ace sce aece brier oae rce latency
    delay ttft tpot itl energy watts cost price carbon co2 emissions distance dist hausdorff hd hd95
    assd asd chamfer cd emd wasserstein ade fde minade minfde regret violation violations collision
    collisions hallucination hallucinations toxicity mate maoe mave maae epe absrel sqrel silog
    mpjpe pampjpe medr meanr mdr mnr mdrank failure failures failed crash crashes forgetting gap
    residual aic bic deviance dtw mcd aurc eaurc overhead inertia levenshtein ned ate rpe mle nmse
    nmae log10 flips timeouts lddtloss divergence disagreement misses mistakes wrong incorrect
    invalid penalty rtf makespan drop wql crps pinball winkler nmpiw mpiw aamr slowdown bler rms
    minwer medianrank meanrank dcf mindcf cllr
"""
LESS = frozenset(LESS_WORDS.split())
MORE_WORDS = """
    acc accuracy top precision prec recall f1 f2 fbeta fscore dice dsc iou miou fwiou jaccard
    ap map map50 ap50 ap75 aps apm apl ar auc auroc aupr auprc aucpr rocauc prauc auac mrr ndcg
    dcg em bleu sacrebleu rouge rougel rougelsum rouge1 rouge2 meteor cider spice chrf bertscore
    comet bleurt psnr ssim msssim vif inception clipscore pck oks mota motp idf1 hota reward
    rewards rew ret iqm return returns winrate success solved pass elo kappa mcc matthews r2 pearson
    spearman kendall correlation corr ccc plcc srcc krcc likelihood elbo throughput fps qps tps
    speedup purity nmi ari ami vmeasure silhouette calinski homogeneity completeness sensitivity
    specificity tpr tnr ppv npv tar hits hit cmc rank1 rank5 rank10 gain lift gini pq sq rq nds
    amota cindex sharpe core extended mc1 mc2 quality preference helpfulness faithfulness similarity
    coverage agreement correct utilization mfu score scores r1 r5 r10 p1 p5 gmean balanced
    hmean hm informedness fmi picp youden lddt tm gdt wins transfer fluency relevance coherence roc
"""
MORE = frozenset(MORE_WORDS.split())
WORDS = LESS | MORE
# Whole phrases, before the words: a rank that is an accuracy, a rank that is a place.
PHRASES = tuple(
    (re.compile(rf"(^|_)({pattern})(_|$)"), higher)
    for higher, pattern in (
        (True, r"reciprocal_rank|main_metric|r_?squared|harmonic_mean|"
         r"rank_?(at_)?\d+|r_?(at_)?\d+|p_?(at_)?(1|3|5|10)|"
         r"(hits?|hr|recall|precision|ndcg|map|mrr|f1|pass)_?(at_)?\d+"),
        (False, r"(mean|median|avg|average|friedman|worst)_?rank(ing)?|"
         r"rank_?(mean|median|avg|average)|fpr_?(at_)?(tpr_?)?\d*|cross_entropy|edit_distance|"
         r"(false_(positive|negative|alarm|acceptance|rejection))s?(_rate)?|(abs|sq)_rel|"
         r"(miss|failure|fail|word_error|char_error|refusal|timeout|false_accept|false_reject)_?rates?|[fk]id\d+k?|"
         r"(steps|episodes|epochs|rounds|samples|time)_(to|until)|davies_bouldin\w*|"
         r"steps_(per_)?(success|goal|solved?|win)|angle_(mean|median)|"
         r"(mean|median|angular)_(angle|error)|"
         r"(inference|response|decode|generation|prediction)_time|"
         r"(s|sec|seconds?|ms|joules?|cost)_per(_\w+)?|bits_(per_\w+|char|byte|token|dim|word)\w*"),
        (False, r"(?<!.)(rank|place|position|"
         r"(\w+_)?(memory|vram|ram|mem)(_(mb|gb|mib|gib|usage|used|allocated))?)(?!.)"),
        (True, r"true_(positive|negative)s?(_rate)?|\w+_per_(s|sec|second|min|minute)|"
         r"log_?(prob|probs|probability|likelihood)|explained_var(iance)?|exact_match|"
         r"win_?rates?|mean_per_class_recall|r_?2(_score)?"),
    )
)  # fmt: skip
# Words that say of what or how, not what: they never decide.
QUALIFIERS = re.compile(
    r"\d+|top_?\d*|at|val|valid|validation|eval|test|train|dev|mean|avg|average|best|final|last|micro|"
    r"macro|weighted|overall|total|rate|pct|percent|percentage|ratio|value|per|class|token|sample|of|"
    r"on|for|the|norm|normalized|score|scores|metric|[a-z]"
)
NEGATED = re.compile(r"^(neg|negative|minus|1_minus|one_minus|inverse|inv)_")
# Metrics that are shares, also where a table has them as percentages.
SHARES = re.compile(
    r"(^|_)(main_metric|[a-z]*acc|[a-z]*accuracy|acc\d+|top_?\d+|top|recall|precision|prec|f1|f2|f_?score|f_?beta|m?ap|ap\d+|map\d+|em|"
    r"exact_match|auc|roc|auroc|aupr|auprc|roc_auc|pr_auc|rocauc|prauc|iou|miou|fwiou|jaccard|dice|dsc|err(or)?_rate|"
    r"top_?\d_err(or)?|^err(or)?$|^s_err|(test|val|train|cls)_err(or)?|wer|cer|per(?!_)|eer|fpr\d*|fnr|far|frr|tpr|tnr|hter|ece|mce|sensitivity|specificity|"
    r"hits?|hr_?(at_)?\d+|c_?index|ndcg|mrr|rouge\w*|bleu|chrf|meteor|success|success_rate|win_?rate|pass|rank_?\d+|r_?(at_)?\d+|p_at_\d+|"
    r"cmc|pq|sq|rq|nds|mota|idf1|hota|pck|ppv|npv|hallucination_rate|"
    r"hit_rate|miss_rate|failure_rate|mc1|mc2|correct)(_|$)"
)
NUMBERS = re.compile(r"(^|_)(total|counts?|events|num|number)$")  # of things, no shares
# Shares that may be above 1: no bound is stated.
UNBOUNDED = re.compile(r"(^|_)(wer|cer|per|der|ter|mota|mce)(_|$)")
# Other units, by the name.
UNITS = (
    (re.compile(r"(^|_)(perplexity|ppl)(_|$)"), "perplexity"),
    (re.compile(r"(^|_)(bpb|bits_per_byte)(_|$)"), "bits per byte"),
    (re.compile(r"(^|_)(bpc|bpd|bits_per_\w+)(_|$)"), "bits"),
    (re.compile(r"_([kmg]i?b_s|[kmg]bps)(ec)?$"), ""),
    (re.compile(r"(?<!_per)(?<!_rad)(?<!_deg)(?<!_m)_(ns|us|ms|s|mb|gb|db|usd|kwh)$"), ""),
)
PERCENT = re.compile(r"%|\b(percent|pct)\b|_(pct|percent)(_|$)", re.I)
# Where nothing else was measured, less of a time is better.
TIMES = re.compile(
    r"(^|_)(times?|tempo|tiempo|temps|zeit|laufzeit|dauer|runtimes?|durations?|timings|elapsed|"
    r"seconds|secs|walltime|wall|hours)(_|$)"
)
AVERAGES = re.compile(
    r"(^|_)(average|avg|averaged|overall|macro(?!_(f\d|f_?score|precision|recall|auc|ap))|"
    r"aggregated?|aggregate)(_|$)|^mean(_(acc|accuracy|score|"
    r"scores|perf|performance|result|of_\w+))?$|(_|^)(acc|accuracy|score|performance)_mean$"
)
# Data sets whose name holds a word of the table above.
NO_METRICS = re.compile(r"(^|_)(in_memory|clevr|kitti|dsprites|smallnorb|vtab|wilds|dmlab)(_|$)")
# Headline metrics, the likeliest first.
HEADLINES = (
    "main_metric",
    "main_score",
    "accuracy",
    "acc1",
    "acc",
    "top1",
    "top_1",
    "acc_norm",
    "exact_match",
    "mean_recall_at_1",
    "image_retrieval_recall_5",
    "mean_average_precision",
)
# Metrics of captions; other words of the tables above are those of sentences, too.
CAPTION_METRIC = re.compile(
    r"(?<![\w-])((top-?[15]|balanced|macro|micro|mean|average|entity|token)[- ])?"
    r"(?P<metric>accuracy|acc|f1|f-?score|auroc|(roc[- ]|pr[- ])?auc|map|miou|iou|dice|bleu|"
    r"rouge-?\w?|wer|cer|perplexity|rmse|mae|fid|recall@\d+|precision@\d+|ndcg@\d+|exact match|"
    r"(test|validation|classification|top-?[15]) error( rate)?|(word )?error rate|success rate)"
    r"(?![\w-])", re.I
)  # fmt: skip
# Words that stand beside the deciding one in a metric's name.
PARTS_OF_NAMES_WORDS = """
    rank log cross entropy exact match roc pr calibration squared absolute average hallucination
    reciprocal
"""
PARTS_OF_NAMES = frozenset(PARTS_OF_NAMES_WORDS.split())
BARE = re.compile(
    r"((val|valid|validation|eval|test|dev|best|final|last|mean|avg|average|macro|micro|weighted|"
    r"metrics?)_)*"
)


@dataclass(frozen=True, slots=True)
class NameFacts:
    """What a name says. higher: None where the name is not known. unit: `share`, `percent`,
    another one that the name says, or "". bounded: a share that cannot be above 1.
    """

    higher: bool | None
    unit: str
    bounded: bool


WITH_SPREAD = re.compile(r"(?<=\w)\s*[(\[]?\s*\b(mean|avg|average)?\s*(±|\+/-).*", re.I)


@lru_cache(CACHED)
def plain_name(name: str) -> str:
    """A column's name in lower case, words joined by _, without accents, the prefixes of trackers
    and what says that its cells have a spread: `acc (mean ± std)`.
    """
    text = WITH_SPREAD.sub("", " ".join(name.split()))  # a cell of spaces would take quadratic time
    text = unicodedata.normalize("NFKD", text)
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])|((?<=[a-z]{4})|(?<=\d))(?=[A-Z]$)", "_", text)
    text = PREFIXES.sub("", text.lower())
    plain = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    return plain.removesuffix("_so_far")  # no rate of false acceptance


@lru_cache(CACHED)
def name_facts(name: str) -> NameFacts:
    """What the name of a metric, or of a column of values, says of it."""
    plain = plain_name(name.replace("@", "_at_"))
    if name in METRICS:
        unit = METRICS[name].unit
        return NameFacts(METRICS[name].higher_is_better, unit, unit == "share")
    higher = direction_of(name, plain)
    if higher is None and TIMES.search(plain):
        higher = False
    is_area = re.search(r"(?<!roc_)(?<!pr_)curve", plain) is not None  # of a curve of any unit
    is_share = SHARES.search(plain) is not None and not (
        _is_loss(plain) or is_area or NUMBERS.search(plain)
    )
    unit = "percent" if PERCENT.search(name) and higher is not None else "share" * is_share
    if not unit and higher is not None:
        found = next(((one, own) for pattern, own in UNITS if (one := pattern.search(plain))), None)
        unit = (found[1] or found[0][1]) if found else ""
    return NameFacts(higher, unit, is_share and UNBOUNDED.search(plain) is None)


def direction_of(name: str, plain: str) -> bool | None:
    """Whether more is better, by arrows and words of a name; None where it has none."""
    if ARROWS_LESS.search(name) or COUNTS_OF_MISTAKES.fullmatch(name.strip()):
        return False
    if ARROWS_MORE.search(name):
        return True
    if found := NEGATED.match(plain):
        if plain.startswith("negative_predictive"):
            return True
        inner = _by_words(plain[found.end() :])
        return None if inner is None else not inner
    before, _, condition = plain.partition("_at_")  # recall_at_1pct_fpr
    is_of_another = condition and not condition.isdecimal()  # rank_at_5 is one phrase
    first = _by_words(before) if is_of_another else None
    return _by_words(plain) if first is None else first


def _by_words(plain: str) -> bool | None:
    if plain.endswith("in_memory"):
        return None
    higher = next((higher for pattern, higher in PHRASES if pattern.search(plain)), None)
    if higher is not None and not _is_loss(plain):
        return higher
    weak: bool | None = higher
    if NO_METRICS.search(plain) and weak is None and "loss" not in plain and "acc" not in plain:
        return None
    for word in reversed(plain.split("_")):
        if word == "per" and not plain.endswith("per"):
            continue  # images per second, not the rate of errors in phonemes
        stem = re.sub(r"\d+$", "", word)
        if word in LESS or stem in LESS:
            return False
        if word in MORE or stem in MORE or re.fullmatch(r"[a-z]*acc(uracy)?", word):
            if not QUALIFIERS.fullmatch(word):
                return True
            weak = True
    return weak


def _is_loss(plain: str) -> bool:
    """Whether it is a loss or an absolute error, whatever other words there are."""
    return re.search(r"(^|_)(loss|losses|nll|entropy|xent|mse|rmse|mae)$", plain) is not None


@lru_cache(CACHED)
def is_known(name: str) -> bool:
    """Whether a name is that of a metric."""
    return name in METRICS or direction_of(name, plain_name(name.replace("@", "_at_"))) is not None


def is_top_k(name: str) -> bool:
    """Whether a name says `top 1` of something, and not of what: accuracies, or errors."""
    return re.fullmatch(r"(\w+_)?top_?\d+", plain_name(name)) is not None


def is_error(name: str) -> bool:
    """Whether a name is that of a share of errors: `err`, `top1_error`, `mCE`."""
    return re.search(r"(^|_)(errs?|errors?|mce)(_|$)", plain_name(name)) is not None


def metric_said(caption: str) -> str:
    """The metric that a caption names; "" where it names none, or several."""
    found = {match["metric"].lower() for match in CAPTION_METRIC.finditer(caption)}
    return found.pop() if len(found) == 1 else ""


def task_stem(name: str) -> str:
    """The name of a column without the words of its metric: equal for two metrics of one task."""
    words = plain_name(name).split("_")
    kept = [word for word in words if not _is_word(word)]
    return "_".join(kept) if len(kept) < len(words) else f"{name} alone"


def deciding_words(name: str) -> frozenset[str]:
    """The words of a name that say what was measured."""
    return frozenset(word for word in plain_name(name).split("_") if _is_word(word))


def is_average(name: str) -> bool:
    """Whether the name of a column says that it is an average of others."""
    return AVERAGES.search(plain_name(name)) is not None


def is_bare_metric(name: str) -> bool:
    """Whether a name is a metric alone, with no task in it: `accuracy`, `val_f1`, not `cars_acc`.

    Two such columns of a table are two metrics of one test set.
    """
    plain = plain_name(name)
    found = BARE.match(plain)
    rest = plain[found.end() :] if found else plain
    words = rest.split("_")
    if not rest or len(words) > 4:
        return False
    return is_known(rest) and all(
        _is_word(word) or QUALIFIERS.fullmatch(word) or word in PARTS_OF_NAMES for word in words
    )


def is_sentence(name: str) -> bool:
    """Whether a name has four words or more that are of no metric: it is called what is tested."""
    words = plain_name(name).split("_")
    return sum(not (_is_word(w) or QUALIFIERS.fullmatch(w) or w in PARTS_OF_NAMES or len(w) < 2)
               for w in words) > 3  # fmt: skip


def _is_word(word: str) -> bool:
    """Whether a word decides, with a number behind it or without."""
    return word in WORDS or re.sub(r"\d+$", "", word) in WORDS
