"""Every claim of the four papers, in the order of their weight, for the pages tests/claims/PAPER.md.

A claim is judged by the first of its `results` (JSON files in results/PAPER) that is there and judges itself; while
there is none it is "not run", and `needs` names the command. {Table 5: SOP, average} is a number of published.json:
none of a paper's is typed here. Days are those of study.days_of. 16 GB of text are 3.7 billion tokens (data/README.md),
30 million rows of 128.
"""
from typing import NamedTuple


class Claim(NamedTuple):
    name: str  # of its anchor on the page
    claim: str  # what the paper says
    where: str  # in the paper
    paper: str  # its numbers
    results: tuple = ()
    size: str = ""  # of the runs behind a result: networks, data, seeds; what its columns mean
    needs: str = ""  # what it takes to run it, or to go on


class Question(NamedTuple):
    text: str  # asked of a claim, and not run
    command: str
    hours: float  # of one core, estimated from runs like it


AUTOBERT_ZERO = (
    Claim("hybrid", "Networks of convolution and attention beat either alone", "Table 5",
          "mean of nine GLUE numbers (dev): AutoBERT-Zero {Table 5: AutoBERT-Zero, average}, attention alone "
          "{Table 5: Att-only, average}, BERT-base {Table 5: BERT-base, average}, convolution alone {Table 5: "
          "Conv-only, average}",
          results=("hybrid", "hybrid_real"),
          size="four layers of width 64, 2,000 updates of 32 rows of 64 tokens, two epochs on all rows of each "
               "task, demo data, n 3, in pairs. CoLA: Matthews' correlation, the others: accuracy, as shares. Hybrid: "
               "conv3 and BERT's attention in turn, twice. Published layers: two of the paper's six pairs (D14). "
               "Second table: real text and real tasks, 16 rows of 128 tokens. There BERT and attention stay on the "
               "plateau of masked words, MRPC is learnt by none (one constant answer has 0.689), and what convolution "
               "alone lacks is SST-2"),
    Claim("attention", "The attention in a searched network earns its place", "Sec. 4.2, Table 5",
          "the published network with its attentions replaced by convolutions: {Table 5: Conv-only, average} "
          "against {Table 5: AutoBERT-Zero, average}",
          results=("attention", "attention_demo"),
          size="the network that `torchrun autobert_zero.py --search` found, and itself with the convolution "
               "before each attention in its place; from scratch, n 3. First table: as in claim 1; second: as the "
               "demo pre-trains (3,000 updates, a lower rate, smaller initial weights)",
          needs="`python -m tests.claims.autobert_zero attention_demo --folders runs/autobert_zero-search-demo`: 0.5 "
                "core-hours behind the demo's search, estimated"),
    Claim("op-nas", "OP-NAS finds better networks than evolution and random search", "Figure 6",
          "curves, no numbers",
          results=("op_nas",),
          size="four layers of width 64, demo data; the demo's search of 24 candidates and three finalists; then each "
               "winner from scratch as the demo pre-trains, tuned on all rows, judged on dev rows that no search saw; "
               "differences in pairs of search seeds",
          needs="`python -m tests.claims.autobert_zero op_nas --seeds 6 --jobs 2`: 5 core-hours, estimated. What "
                "evolution and random search find without any training: [simulation](#simulation)"),
    Claim("simulation", "OP-NAS finds better networks than evolution and random search, on simulated landscapes",
          "Figure 6", "curves, no numbers",
          results=("simulation",),
          size="values of networks made up by a rule, seen with noise of half a deviation; what counts is the true "
               "value of the network returned, in deviations of random ones",
          needs="`python -m tests.claims.autobert_zero simulation`: minutes"),
    Claim("glue", "The published network beats BERT of its size", "Table 2",
          "GLUE dev {Table 2: AutoBERT-Zero, GLUE dev} against {Table 2: BERT-base, GLUE dev}. Started from the "
          "super-net {Table 2: AutoBERT-Zero*, GLUE dev}, and on test {Table 2: AutoBERT-Zero*, GLUE test}, more "
          "than RoBERTa-base ({Table 2: RoBERTa-base, GLUE test}) and BERT-large ({Table 2: BERT-large, GLUE "
          "test})",
          needs="`python autobert_zero.py --pretrain --arch bert --layers 6 --length 64 --batch 16 --steps 1500 "
                "--corpus path/to/corpus` and the same with `--arch autobert-zero`, three seeds of each, then "
                "`--finetune CoLA,SST-2,MRPC`: 0.7 core-hours, estimated. At the paper's size 40 passes over 16 GB "
                "of text, {days: autobert_zero | base | pre-training of autobert-zero, 160 rows of 128, 1 shard: "
                "1.2e9} of an H100 for it and {days: autobert_zero | base | pre-training of bert, 160 rows of 128, "
                "1 shard: 1.2e9} for BERT, then GLUE"),
    Claim("squad", "It beats BERT-base on SQuAD", "Table 3",
          "F1 {Table 3: AutoBERT-Zero, SQuAD1.1} against {Table 3: BERT-base, SQuAD1.1} (v1.1), {Table 3: "
          "AutoBERT-Zero, SQuAD2.0} against {Table 3: BERT-base, SQuAD2.0} (v2.0)",
          needs="the networks of claim 4, then `python autobert_zero.py --finetune SQuAD1.1 --init runs/pre "
                "--squad path/to/squad --train_rows 800`: 0.3 core-hours, estimated. At the paper's size a "
                "pre-trained base network, then `--finetune squad --preset base`"),
    Claim("scaling", "The network found at base size wins at small and large size", "Table 4",
          "GLUE dev: small {Table 4: AutoBERT-Zero-small, GLUE dev} (BERT {Table 4: BERT-small, GLUE dev}), large "
          "{Table 4: AutoBERT-Zero-large, GLUE dev} (BERT {Table 4: BERT-large, GLUE dev})",
          needs="The next claim counts its networks. Their scores take 40 passes over 16 GB, {days: autobert_zero "
                "| large | pre-training of autobert-zero, 80 rows of 128, 1 shard: 1.2e9} of an H100 for large"),
    Claim("counts", "It needs fewer parameters and FLOPs", "Tables 2 to 5",
          "{Table 2: AutoBERT-Zero, parameters}M and {Table 2: AutoBERT-Zero, FLOPs} FLOPs against {Table 2: "
          "BERT-base, parameters}M and {Table 2: BERT-base, FLOPs}",
          results=("counts",)),
    Claim("latency", "It is faster than BERT and takes less memory", "Table 7",
          "{Table 7: AutoBERT-Zero, latency} s and {Table 7: AutoBERT-Zero, memory} GB against {Table 7: "
          "BERT-base, latency} s and {Table 7: BERT-base, memory} GB, batches of 128 on a V100",
          results=("latency",),
          needs="`python -m tests.claims.autobert_zero latency --preset base --sequences 8`, 0.02 core-hours on an "
                "idle machine; the memory needs a GPU: `python -m tests.claims.autobert_zero latency --preset base "
                "--device cuda`, a minute"),
    Claim("uniformity", "Its tokens stay more different from each other", "Figure 5",
          "curves, no numbers",
          results=("uniformity",),
          needs="`python -m tests.claims.autobert_zero uniformity --folders runs/bert-0 runs/autobert-zero-0 "
                "--glue path/to/glue --tasks MRPC --length 64`, 0.1 core-hours behind the networks of claim 4, "
                "estimated"),
    Claim("fidelity", "Scores with shared weights rank architectures as full training does", "Figure 8, App. B",
          "a picture of Kendall's correlations, no numbers",
          results=("fidelity",),
          size="24 architectures of one search, spread by score, each from scratch, on dev rows that the search has "
               "not seen; 95% intervals by the bootstrap over architectures",
          needs="`python -m tests.claims.autobert_zero fidelity --folders RUN --samples 24 --steps 3000`: 3 core-hours, "
                "estimated"),
    Claim("sharing", "Shared weights save most of a candidate's training", "Sec. 3.2, 4.1",
          "{Sec. 3.2: evaluation cost saved by BIWS}% of a candidate's cost, so {Sec. 4.1: cost of the search} "
          "V100 hours in place of {Sec. 4.1: cost of evolution without BIWS}",
          needs="`python -m tests.claims.autobert_zero fidelity --folders "
                "runs/claims/autobert_zero/op_nas/search-op-nas-0 --samples 5 --steps 120 --batch 32` and with 240 "
                "and 480 steps, to see how many updates from scratch reach the score that a candidate has in the "
                "search: 0.5 core-hours behind that search, estimated"),
    Claim("kernels", "Kernels go from wide to narrow, and blocks of convolution and attention win",
          "Sec. 4.2, Figure 7",
          "without the descent {Table 2: AutoBERT-w/o-desc, GLUE dev}, three attentions in a row {Table 2: "
          "AutoBERT-att, GLUE dev}, three convolutions in a row {Table 2: AutoBERT-conv, GLUE dev}, the network "
          "found {Table 2: AutoBERT-Zero, GLUE dev}",
          needs="`python autobert_zero.py --search --corpus path/to/corpus --glue path/to/glue --tasks "
                "MLM,CoLA,SST-2,MRPC --population 16 --rounds 7 --vocab_size 2000 --train_rows 800 --steps 150`, "
                "0.2 core-hours a seed, shows what a search finds; the comparison needs the three rivals' layers, "
                "which the paper prints as pictures"),
)

AUTOTINYBERT = (
    Claim("shape", "Searched shapes beat the conventional rule's at every latency", "Figure 1, Table 1",
          "average with SQuAD, searched against rule: S1 {Table 1: AutoTinyBERT-S1, average} and {Table 1: "
          "BERT-S1, average}, S2 {Table 1: AutoTinyBERT-S2, average} and {Table 1: BERT-S2, average}, S3 {Table 1: "
          "AutoTinyBERT-S3, average} and {Table 1: BERT-S3, average}, S4 {Table 1: AutoTinyBERT-S4, average} and "
          "{Table 1: BERT-S4, average}",
          results=("shape",),
          size="real text, a SuperPLM of 4-96-384-6-96 with 4,000 updates of 32 rows of 48 tokens, each shape 500 "
               "more from there, n 3, in pairs. The loss is of masked words, in nats (36,687 of them), ms of one row "
               "of 128 tokens, of encoder and pooler unless it says otherwise",
          needs="`python -m tests.claims.autotinybert shape --seeds 5 --jobs 2 --corpus path/to/corpus`, 1.4 "
                "core-hours: of a SuperPLM and a search of seed 0"),
    Claim("speedups", "The published shapes are as many times as fast as BERT-base", "Tables 1, 4, F.1",
          "the column published, and what another table prints",
          results=("latency",),
          size="networks without training, one row of 128 tokens, medians of five rounds in which all take turns. "
               "KD: for distillation; PF: BERTs that Turc et al. released; S5: of the paper's Table 5"),
    Claim("ranking", "Identical layers, sub-matrix extraction and Algorithm 1 make one-shot scores rank right",
          "Table 3, Figure 4",
          "pairwise accuracy {Table 3: HAT, pairwise accuracy}% (HAT), {Table 3: ILS, pairwise accuracy}, {Table "
          "3: ILS + SME, pairwise accuracy}, {Table 3: ILS + SME + EBL, pairwise accuracy}% (all). SQuAD's F1 in "
          "one shot {Table 3: ILS + SME + EBL, SQuAD} (HAT {Table 3: HAT, SQuAD}), trained alone {Table 3: "
          "stand-alone, SQuAD}",
          results=("ranking",),
          size="real text, 16 architectures (depths 1 to 4, widths 8 to 64), a SuperPLM of 1,000 updates a variant "
               "and seed, each architecture alone 600 updates, scores of masked words in percent of a guesser's "
               "loss saved, n 3, in pairs. Nothing is left to tell apart: two seeds of the truth order 91% of the "
               "pairs alike, and so well does each variant. Algorithm 1 has the highest scores"),
    Claim("distillation", "Searched shapes win under distillation too", "Table 2",
          "average, searched against rule: S1 {Table 2: AutoTinyBERT-KD-S1, average} and {Table 2: BERT-KD-S1, "
          "average}, S2 {Table 2: AutoTinyBERT-KD-S2, average} and {Table 2: BERT-KD-S2, average}, S3 {Table 2: "
          "AutoTinyBERT-KD-S3, average} and {Table 2: BERT-KD-S3, average}, S4 {Table 2: AutoTinyBERT-KD-S4, "
          "average} and {Table 2: BERT-KD-S4, average}. On test {Table 2: AutoTinyBERT-KD-S1, test average}, as "
          "MobileBERT ({Table 2: MobileBERT-tiny, test average}) and above MiniLM ({Table 2: MiniLM-4L516D, test "
          "average})",
          needs="a teacher that knows more than its students. `python autotinybert.py --further_train --setting "
                "distill --teacher runs/super --further_steps 700 --arch 3-48-192-8-48 --corpus path/to/corpus` "
                "and the same shape by masked words, three seeds of each, then `--finetune SST-2,MRPC,CoLA`: 0.5 "
                "core-hours, estimated. As in the paper: `python autotinybert.py --search --preset base --setting "
                "distill --teacher path/to/electra-base-discriminator` and as much for the rule's shapes"),
    Claim("predictor", "Latency is predicted from measurements of other architectures", "Sec. 3.5",
          "a feed-forward network, no error given",
          results=("predictor",),
          size="401 architectures of the paper's space, the least of three times for a row of 128 tokens, four "
               "fifths to learn from, n 1. MAPE: mean error in percent; linear: least squares, the file's; mlp: "
               "the paper's kind. The last row: two times of the same one"),
    Claim("convergence", "Starting from the SuperPLM saves half of the training", "Figure 5",
          "{Figure 5: training time saved}% saved",
          needs="`python autotinybert.py --superplm --largest 4-64-256-8-64 --smallest 1-16-28-1-8 --reference "
                "4-64-256-8-64 --length 32 --batch 32 --vocab_size 2000 --steps 1500 --corpus path/to/corpus`, then "
                "`python autotinybert.py --further_train` of `--arch 3-48-192-6-48` with these flags and "
                "`--further_steps 700`, once with `--init` of that run and once without, three seeds of each; "
                "`dev_loss` in their log.jsonl says when the first reaches the last loss of the second: 0.5 "
                "core-hours, estimated"),
    Claim("fast", "A rule read off the winners replaces the search", "Table 5, Sec. 4.4",
          "average {Table 5: AutoTinyBERT-Fast-S5, average} (Fast), {Table 5: AutoTinyBERT-S5, average} (search), "
          "{Table 5: BERT-S5, average} (BERT-S5), for {Table 5: AutoTinyBERT-Fast-S5, search} + {Table 5: "
          "AutoTinyBERT-Fast-S5, training}, {Table 5: AutoTinyBERT-S5, search} + {Table 5: AutoTinyBERT-S5, "
          "training} and {Table 5: BERT-S5, training} V100 hours",
          needs="`python autotinybert.py --search --strategy fast --largest 4-64-256-8-64 --smallest 1-16-28-1-8 "
                "--reference 4-64-256-8-64 --length 32 --batch 32 --vocab_size 2000 --tasks MLM --corpus "
                "path/to/corpus --speedup 4.6` and with `--strategy evolution`, three seeds of each: 1 core-hour, "
                "estimated"),
    Claim("rule", "The winners follow a rule of their own", "Table 4, Sec. 4.4",
          "d^f is {Sec. 4.4: least d^f} to {Sec. 4.4: largest d^f} times d^m, d^q {Sec. 4.4: least d^q} to {Sec. "
          "4.4: largest d^q} times",
          needs="the winners of many searches like those of claim 1: one more takes 0.9 core-hours "
                "([asked](#asked))"),
    Claim("space", "The search space has so many architectures", "App. B",
          "{App. B: search space, pre-training} M for pre-training, {App. B: search space, distillation} M for "
          "distillation",
          results=("space",)),
    Claim("others", "It beats other searches and small BERTs", "Table 1",
          "GLUE {Table 1: AutoTinyBERT-S2, GLUE} at {Table 4: AutoTinyBERT-S2, speed-up} times BERT-base's speed, "
          "NAS-BERT {Table 1: NAS-BERT10, GLUE} at {Table 1: NAS-BERT10, speed-up}. Average {Table 1: "
          "AutoTinyBERT-S1, average} (S1), of the released four-layer BERT of its speed {Table 1: PF-4L512, "
          "average}",
          needs="five passes over 16 GB for the SuperPLM, {days: autotinybert | base | SuperPLM, sub-batches of 16 "
                "rows of 128, 2 shards: 1.5e8} of an H100, and for each winner no more than {days: autotinybert | "
                "base | further training, sub-batches of 16 rows of 128, 2 shards: 1.5e8}"),
)

WORDS_ALONE = ("two layers of width 64 that share everything, E = 32, 3,000 updates of 64 rows of 16 tokens, words "
               "alone, demo text, percent of 21,176 masked words, differences in points, n 3, in pairs")
ALBERT = (
    Claim("order", "Sentence order is the better second task: NSP's model cannot do it, its own model can do NSP",
          "Table 5",
          "accuracy in NSP and SOP, and average of the tasks: none {Table 5: None, NSP}, {Table 5: None, SOP} and "
          "{Table 5: None, average}, NSP {Table 5: NSP, NSP}, {Table 5: NSP, SOP} and {Table 5: NSP, average}, SOP "
          "{Table 5: SOP, NSP}, {Table 5: SOP, SOP} and {Table 5: SOP, average}",
          results=("order", "order-many"),
          size="two layers of width 64, 3,000 updates of 64 rows of 16 tokens on words alone, then 3,000 of 32 "
               "rows of 64 with each objective, demo text (documents of four sentences), n 3, in pairs. Percent of "
               "about 25,000 masked words and 1,850 pairs. NSP, SOP: by a logistic regression on [CLS] of the "
               "frozen model; own head: by the one that was trained. Shuffled: SOP with random labels. The second "
               "table is of novels (200 sentences a document and more), where a pilot had seen no order learnt: a "
               "null was expected"),
    Claim("embedding", "A small E is enough where layers are shared", "Table 3",
          "average for E of 64, 128, 256, 768, shared: {Table 3: all-shared E=64, average}, {Table 3: all-shared "
          "E=128, average}, {Table 3: all-shared E=256, average}, {Table 3: all-shared E=768, average}. Not "
          "shared: {Table 3: not-shared E=64, average} to {Table 3: not-shared E=768, average}",
          results=("sharing",),
          size="two layers of width H = 64, 3,000 updates of 64 rows of 16 tokens, masked words alone, demo text, "
               "n 3, in pairs. Percent of 21,176 masked words, differences in points. With E = 16 the seeds of one "
               "network are up to 5 points apart: hence the wide intervals"),
    Claim("sharing", "Sharing costs little, and most of that by the feed-forward part", "Table 4",
          "average at E = 768 and 128: nothing shared {Table 4: not-shared E=768, average} and {Table 4: "
          "not-shared E=128, average}, attention {Table 4: shared-attention E=768, average} and {Table 4: "
          "shared-attention E=128, average}, feed-forward {Table 4: shared-FFN E=768, average} and {Table 4: "
          "shared-FFN E=128, average}, all {Table 4: all-shared E=768, average} and {Table 4: all-shared E=128, "
          "average}",
          results=("sharing",)),
    Claim("parameters", "ALBERT's configurations have a fraction of BERT's parameters", "Tables 1, 3, 4, 12",
          "{Table 1: ALBERT base, parameters} M for base in place of {Table 1: BERT base, parameters} M, and so "
          "on, in the column paper",
          results=("parameters",),
          size="counted four ways: A encoder, B and its pooler, C and both heads, D as B with positions and "
               "segments H wide"),
    Claim("speed", "ALBERT trains faster than BERT of its shape", "Table 2",
          "speed over BERT large: base {Table 2: ALBERT base, speed-up} (BERT base {Table 2: BERT base, "
          "speed-up}), large {Table 2: ALBERT large, speed-up}, xlarge {Table 2: ALBERT xlarge, speed-up}, xxlarge "
          "{Table 2: ALBERT xxlarge, speed-up}, on many TPUs",
          results=("flops",),
          needs="`python albert.py --pretrain --preset base --length 128 --batch 2 --steps 20 --corpus "
                "path/to/corpus` and the same with `--preset bert-base` and `bert-large`, one after another on an idle "
                "machine; log.jsonl has the tokens a second: 0.1 core-hours, estimated. What sharing saves in the "
                "exchange needs many cards: `torchrun` with `--preset large`, minutes a row"),
    Claim("xxlarge", "xxlarge beats BERT large with fewer parameters", "Table 2",
          "average {Table 2: ALBERT xxlarge, average} against {Table 2: BERT large, average}. At base size BERT is "
          "ahead: {Table 2: ALBERT base, average} against {Table 2: BERT base, average}",
          needs="125,000 updates of 4,096 rows, {days: albert | xxlarge | pre-training, 32 rows of 512, 2 shards: "
                "512e6} of an H100 for xxlarge, {days: albert | base | pre-training, 64 rows of 512, 2 shards: "
                "512e6} for base"),
    Claim("time", "It wins at equal training time too", "Table 6",
          "average {Table 6: ALBERT-xxlarge, average} against {Table 6: BERT-large, average}",
          results=("equal_time",),
          size=f"{WORDS_ALONE}"
               "; ALBERT of H = 128 with E = 32 against BERT of H = 64 that shares nothing and maps no embedding, "
               "at the time of 1,000, 2,000 and 4,000 of BERT's updates (an update takes 2.15 times as long, in "
               "turns). At this learning rate H = 128 hardly leaves the plateau in so few updates"),
    Claim("depth", "Depth helps a shared stack, with less and less to gain", "Tables 11, 13",
          "average for 1, 3, 6, 12, 24, 48 layers: {Table 11: 1, 3, 6, 12, 24, 48 layers, average}. xxlarge of 12 "
          "and 24 layers: {Table 13: 12 and 24 layers, average}",
          results=("depth",),
          size=f"{WORDS_ALONE}"
               ", but for the depth, half the learning rate and three times the warm-up. One of three seeds of "
               "eight layers stays on the plateau; at the full rate all three do, and two of four layers"),
    Claim("groups", "Smaller groups of shared layers do better", "Sec. 4.5",
          "no numbers",
          results=("groups",),
          size=f"{WORDS_ALONE}"
               ", but for four layers, half the learning rate and three times the warm-up"),
    Claim("dropout", "Taking dropout out helps", "Table 8, Figure 2",
          "average {Table 8: with dropout, average} with it, {Table 8: without dropout, average} without",
          results=("dropout",),
          size=f"{WORDS_ALONE}"
               ". No dropout is the demo's own setting"),
    Claim("width", "Width helps, up to a point", "Table 12",
          "average for H of 1024, 2048, 4096, 6144: {Table 12: H of 1024, 2048, 4096, 6144, average}",
          results=("width",),
          size=f"{WORDS_ALONE}"
               ", but for the width (feed-forward 2 H, heads of 32), half the learning rate and three times the "
               "warm-up"),
    Claim("layers", "Layers change their input smoothly, and never stop", "Figure 1",
          "{Figure 1: layers of BERT-large and ALBERT-large} layers, curves, no numbers",
          results=("smoothness",),
          size=f"{WORDS_ALONE}"
               ", but for eight layers, half the learning rate and three times the warm-up; the angle between "
               "input and output of each, mean of three seeds (of random weights: one draw); roughness: how far "
               "angles are from the middle of their neighbours. One of three shared networks stays on the plateau, "
               "and its layers stop turning their input. The two that learn are smoother than their unshared twins "
               "(0.05 and 0.04 against 0.10 both), and their last layers turn by 10 and 13 degrees"),
    Claim("data", "More text helps, but for SQuAD", "Table 7, Figure 2",
          "average {Table 7: with additional data, average} against {Table 7: no additional data, average}",
          needs="two trainings of base, {days: albert | base | pre-training, 64 rows of 512, 2 shards: 512e6} of "
                "an H100 each"),
    Claim("best", "State of the art on GLUE, SQuAD and RACE", "Tables 9, 10",
          "GLUE {Table 9: ALBERT, GLUE test}, SQuAD2.0 {Table 10: ALBERT, SQuAD2.0 test F1} (F1), RACE {Table 10: "
          "ALBERT, RACE test} of ensembles, {Table 10: ALBERT 1.5M, RACE test} of one model",
          needs="`python albert.py --finetune paper --preset xxlarge --init path/to/albert-xxlarge-v2` with the "
                "official data: a card of 40 GB (RACE with `--accumulate 8`)"),
)

MFORMER = (
    Claim("mixed", "Mixed attention keeps softmax's accuracy at a lower cost", "Table 5, Figure 1",
          "CIFAR-10: mFormer {Table 5: CIFAR-10, mFormer}% with {Table 5: CIFAR-10, mformer, FLOPS} G, "
          "Transformer* {Table 5: CIFAR-10, Transformer*}% with {Table 5: CIFAR-10, transformer*, FLOPS} G, "
          "cosFormer* {Table 5: CIFAR-10, cosFormer*}% with {Table 5: CIFAR-10, cosformer*, FLOPS} G",
          results=("mixed",),
          size="CIFAR-10, 10,000 pictures to train on and 2,000 to score, patches of 2: 257 tokens. Three searches "
               "of one seed (100 samples, limit 0.09 GFLOPs); each network found from scratch, 800 updates of 16 "
               "pictures (1.3 passes: the start of a training), n 3, differences in pairs. ms: a picture on one "
               "core, in turns. Rows of one architecture are one network: the mixed search found softmax alone, "
               "the best of its own random samples"),
    Claim("translation", "It translates like the softmax network with fewer parameters", "Table 3, Table 5",
          "BLEU {Table 5: WMT'14, mFormer} with {Table 5: WMT'14, mformer, parameters} M parameters, Transformer* "
          "{Table 5: WMT'14, Transformer*} with {Table 5: WMT'14, transformer*, parameters} M",
          needs="`python mformer.py --task wmt14 --search --preset small --train_text path/to/train --valid_text "
                "path/to/val --test_text path/to/test --space mixed` and with `--space softmax`, each winner by "
                "`--train` and `--evaluate` with three seeds, on Multi30k: 2 core-hours, estimated"),
    Claim("linear", "Linear attention alone loses accuracy, and collapses in translation", "Table 5, Sec. 4.2.2",
          "BLEU {Table 5: WMT'14, cosFormer*, BLEU} and, of mFormer made linear, {Table 5: WMT'14, mFormer (all "
          "linear)}. CIFAR-10 {Table 5: CIFAR-10, cosFormer*}% and {Table 5: CIFAR-10, mFormer (all linear)}%",
          needs="the searches and trainings of the claim before this one with `--space linear`: 1 core-hour, "
                "estimated. The next claim exchanges the types of one network"),
    Claim("types", "Exchanging the types of one network tells what each is worth", "Table 5, Sec. 4.5",
          "mFormer {Table 5: WMT'14, mFormer} BLEU, all softmax {Table 5: WMT'14, mFormer (all Softmax)}, all "
          "linear {Table 5: WMT'14, mFormer (all linear)}. CIFAR-10 {Table 5: CIFAR-10, mFormer}, {Table 5: "
          "CIFAR-10, mFormer (all Softmax)}, {Table 5: CIFAR-10, mFormer (all linear)}%. Transformer* made linear "
          "{Table 5: WMT'14, Transformer* (all linear)} BLEU, {Table 5: CIFAR-10, Transformer* (all linear)}%, "
          "cosFormer* made softmax {Table 5: CIFAR-10, cosFormer* (all Softmax)}%",
          needs="`python mformer.py --task wmt14 --train --preset small --arch mformer --train_text path/to/train "
                "--test_text path/to/test` and with `--arch mformer-softmax` and `mformer-linear`, then `--evaluate` "
                "of each, three seeds: 1 core-hour, estimated"),
    Claim("length", "Linear attention grows linearly with the length, softmax with its square", "Sec. 1, Figure 3",
          "no numbers",
          results=("length", "networks"),
          size="one attention of eight heads of 64, one row, medians of 5 to 80 turns. Kept: for the backward "
               "pass; peak: of a GPU. Relative: with the paper's relative positions; causal: of a decoder. Second "
               "table: whole networks of four layers of width 64, forward, one picture, medians of 40 turns and "
               "their 95% intervals; a mix has one softmax layer and three linear ones, and stands beside softmax "
               "of its own kind"),
    Claim("decoder", "Linear attention in the decoder breaks a translator", "Sec. 8",
          "{Sec. 8: linear attention in the decoder} BLEU in all three cases",
          needs="`python mformer.py --task wmt14 --train --preset small --steps 500 --arch mformer-softmax "
                "--train_text path/to/train --test_text path/to/test`, then with the text that `--describe` prints of "
                "it, `decoder_types=linear,linear`, `cross_types=linear,linear` or both in it, and `--evaluate` of "
                "each: 0.3 core-hours, estimated; more updates to tell networks that translate apart"),
    Claim("rankers", "Two rankers order architectures, and pruning the space helps", "Sec. 3.1.2",
          "no numbers; the fastest and slowest {Sec. 3.1.2: fastest and slowest discarded} of the samples are left "
          "out",
          results=("ranker",),
          size="CIFAR-10, 65 tokens, one super-net of 600 updates, 500 of its sub-nets, judged by loss on 500 "
               "held-out pictures and by FLOPs; tau and pair accuracy of rankers fitted to so many of them, on "
               "those that they have not seen (five parts, mean and deviation). Below, the best of five finalists "
               "and their mean, three seeds, in the pruned space (84 architectures) and in the whole one: equal "
               "samples, equal evolution"),
    Claim("importance", "Attention types rule accuracy on images, the number of layers rules efficiency", "Sec. 7",
          "accuracy: the decoder's layers first (translation), attention type first (images). Efficiency: the "
          "decoder's layers, the encoder's layers",
          results=("importance",),
          size="images: CIFAR-10 at 65 tokens, the 500 sub-nets of the claim before this one, efficiency in FLOPs; "
               "how much pair accuracy a ranker loses where a feature is shuffled, the mean of five rankers"),
    Claim("structure", "cosFormer* wants shallower and thinner networks than Transformer*", "Tables 3, 4, Figures 5, 6",
          "layers of Transformer*, cosFormer*, mFormer: {Table 3: Transformer*, cosFormer*, mFormer: decoder "
          "layers} in the decoder (translation), {Table 4: Transformer*, cosFormer*, mFormer: layers} (images)",
          needs="the searches of claims 1 and 2; `PUBLISHED` in mformer.py has the paper's lists"),
    Claim("counts", "Parameters and FLOPs of the networks", "Tables 3, 4, 5",
          "mFormer {Table 5: CIFAR-10, mformer, parameters} M and {Table 5: CIFAR-10, mformer, FLOPS} G, all "
          "softmax {Table 5: CIFAR-10, mformer-softmax, FLOPS} G",
          results=("counts",)),
    Claim("vanilla", "Searched networks beat the hand-made ones", "Table 5",
          "CIFAR-10: cosFormer* {Table 5: CIFAR-10, cosFormer*} against {Table 5: CIFAR-10, Vanilla cosFormer}%, "
          "Transformer* {Table 5: CIFAR-10, Transformer*} against {Table 5: CIFAR-10, Vanilla Transformer}%. "
          "Translation: {Table 5: WMT'14, Transformer*} against {Table 5: WMT'14, Vanilla Transformer} BLEU",
          needs="four trainings of 140,000 updates of 64 pictures, {days: mformer | base cifar10 | training, 64 "
                "pictures, 2 shards: 8.96e6} of an H100 each by products of matrices alone, more by their launches"),
)

CLAIMS = {"autobert_zero": AUTOBERT_ZERO, "autotinybert": AUTOTINYBERT, "albert": ALBERT, "mformer": MFORMER}

OP_NAS = "python -m tests.claims.autobert_zero op_nas --against "
ASKED = {
    "autobert_zero": (
        Question("OP-NAS against plain evolution, equal budgets, winners trained alone", f"{OP_NAS}evolution", 1.5),
        Question("BERT with four times the updates on real text (claim 1's second table leaves it out)",
                 "python autobert_zero.py --pretrain --arch bert --steps 8000 --init_std 0.1 --lr 4e-3 "
                 "--vocab_size 4000 --length 128 --batch 16 --corpus path/to/corpus", 0.6),
        Question("Does pre-training help on the demo's tasks?",
                 "python autobert_zero.py --finetune glue --eval_every 1000 --init runs/pre --out runs/tuned", 1),
        Question("A search scored by SST-2", "python autobert_zero.py --search --tasks SST-2 --glue path/to/glue "
                 "--corpus path/to/corpus", 0.3),
        Question("Masked words alone as the score: a pilot of an earlier commit saw the number of convolutions rule it",
                 "python autobert_zero.py --search --tasks MLM", 0.2)),
    "autotinybert": (
        Question("A third SuperPLM", "python -m tests.claims.autotinybert shape --seed 7 --corpus path/to/corpus "
                 "--runs runs/claims/autotinybert/third --results path/to/results", 0.9),
        Question("Sec. 4.4's rule in place of the search",
                 "python autotinybert.py --search --strategy fast --tasks MLM --largest 4-96-384-6-96 --reference "
                 "4-96-384-6-96 --length 48 --vocab_size 4000 --steps 4000 --further_steps 500 --corpus "
                 "path/to/corpus", 0.5),
        Question("Distillation by a teacher trained ten times as long as its students (trained here first)",
                 "python autotinybert.py --further_train --setting distill --teacher runs/super --arch 3-48-192-8-48 "
                 "--corpus path/to/corpus", 2.5),
        Question("The best shape of a grid within the limit, each trained alone (one of some thirty)",
                 "python autotinybert.py --further_train --arch 2-64-256-4-64 --further_steps 4500 --vocab_size 4000 "
                 "--length 48 --corpus path/to/corpus", 3)),
    "albert": (
        Question("What E and sharing cost in sentence order, and then in CoLA and QNLI, for each of `sharing`'s runs",
                 "python albert.py --pretrain --init runs/16 --objective sop", 4),),
    "mformer": (
        Question("Other seeds of the three searches, and ten times the updates", "python -m tests.claims.mformer mixed "
                 "--seeds 6 --steps 8000 --cifar10 path/to/cifar-10-batches-bin", 18),
        Question("Translation of eight sentences joined to a line (200 to 300 tokens), BLEU and time; `paste -d ' ' "
                 "- - - - - - - -` joins them",
                 "python mformer.py --task wmt14 --train --preset small --arch mformer --train_text path/to/train "
                 "--test_text path/to/test", 3)),
}
