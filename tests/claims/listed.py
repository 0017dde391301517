"""Every claim of the four papers, in the order of their weight, for the pages tests/claims/PAPER.md.

A claim is judged by the intervals and facts in the JSON file of its `study` whose names match `asks`; while there is no
such file it is "not run", and `needs` names the command. {Table 5: SOP, average} is a number of published.json: none of
a paper's is typed here. Days are those of study.days_of. 16 GB of text are 3.7 billion tokens, 30 million rows of 128.
"""
from typing import NamedTuple


class Claim(NamedTuple):
    name: str  # of its anchor on the page
    claim: str  # what the paper says
    where: str  # in the paper
    paper: str  # its numbers
    study: str = ""  # whose JSON file judges it
    asks: str = "."  # a pattern: of these intervals and facts of the file
    least: float = 0.0  # what an interval is to lie above
    digits: int = 2  # of an interval
    size: str = ""  # of the runs behind the result: networks, data; the first claim of a study tells it for all
    older: str = ""  # what code had measured that has changed since
    needs: str = ""  # what it takes to run it; the first claim of a study tells it for all


SEARCHED = ("Four layers of width 64 on demo data. Each search is the demo's, of 20 candidates, which begin with the "
            "embeddings, FFNs, norms and heads of the network typed by hand. OP-NAS and random search share the first "
            "eight. The score holds CoLA and RTE, not MRPC and QNLI. A winner is trained from scratch, half of the "
            "updates in short rows, tuned on all rows, and judged on dev rows that no search has seen; a pilot of "
            "eight networks, judged on the same rows, chose the score. Differences are in pairs of search seeds, as "
            "shares of the mean of four tasks. This is the fourth design. In those before it, in long rows alone, "
            "OP-NAS's winners were 0.055, 0.052 and 0.036 behind the hybrid (n 6, 2, 2)")
SIMULATED = ("Networks have values that a rule makes up, and a search sees them with noise of half a deviation. What "
             "counts is the true value of the network that it returns, in deviations of random networks, on three "
             "kinds of landscape")
TOGETHER = ("Layers of all four files in one frame: four layers of width 64 with an FFN of 256 (AutoTinyBERT: "
            "3-84-236-5-80), pre-trained in the time of 3,000 of BERT's updates of 2,048 tokens, half of them in rows "
            "of 16 tokens, half of 64, and tuned on all rows of each task. Percent, on demo data; differences are in "
            "points of the mean, in pairs of seeds. Searches had time of their own, and AutoBERT-Zero's found its "
            "networks with other settings; a pilot of BERT chose the short rows; by later timings networks had 11% too "
            "few to 8% too many updates. From [CLS] the convolutions see five pieces")
AUTOBERT_ZERO = (
    Claim("op-nas", "OP-NAS finds better networks than random search", "Figure 6", "curves, no numbers",
          "op_nas", "OP-NAS - random", digits=3, size=SEARCHED,
          needs="`python -m tests.claims.autobert_zero op_nas --seeds 4 --jobs 2`: 2 core-hours. By the [simulation]"
                "(#simulation) it takes 20 to 100 pairs of searches of 24 candidates to tell the two apart, or 6 to 10 "
                "of 100, which are some 11 core-hours"),
    Claim("op-nas-by-hand", "What OP-NAS finds beats BERT", "Table 5",
          "mean of nine GLUE numbers: AutoBERT-Zero {Table 5: AutoBERT-Zero, average}, BERT-base {Table 5: BERT-base, "
          "average}", "op_nas", "OP-NAS - BERT", digits=3),
    Claim("op-nas-hybrid", "The demo's search finds more than a person types by hand", "Table 5",
          "our question: it names no network that was typed by hand", "op_nas", "OP-NAS - hybrid", digits=3),
    Claim("op-nas-goal", "Each of the demo's searches finds a network with 0.80", "Sec. 4",
          "our goal: it has no such number", "op_nas", "goal"),
    Claim("op-nas-long", "A search of 56 candidates finds more than a person types by hand", "Table 5",
          "our question: it names no network that was typed by hand", "op_nas_long", "OP-NAS - hybrid", digits=3,
          size=SEARCHED.replace("20 candidates", "56 candidates").replace(
              "OP-NAS and random search share the first eight. ", ""),
          needs="`python -m tests.claims.autobert_zero op_nas_long --seeds 2 --jobs 2`: 0.8 core-hours"),
    Claim("op-nas-evolution", "OP-NAS finds better networks than an evolution with uniform mutations", "Figure 6",
          "curves, no numbers", "op_nas-evolution", "OP-NAS - evolution", digits=3,
          size="As in [claim 1](#op-nas), with the same seeds. Who is warm goes on from the weights of OP-NAS's "
               "winner, after 1.3 million tokens; the hybrid takes what fits it of them. All train on 6.1 million",
          needs="`python -m tests.claims.autobert_zero op_nas --against evolution --seeds 4 --jobs 2`: 1.8 core-hours"),
    Claim("op-nas-warm", "The weights of a search help the network that it found", "Table 2",
          "GLUE dev {Table 2: AutoBERT-Zero*, GLUE dev} with them, {Table 2: AutoBERT-Zero, GLUE dev} without",
          "op_nas-evolution", "warm OP-NAS - OP-NAS", digits=3),
    Claim("op-nas-warm-hybrid", "With them it is better than what a person types and begins with them too", "Table 2",
          "our question", "op_nas-evolution", "warm OP-NAS - warm hybrid", digits=3),
    Claim("op-nas-warm-goal", "With them each of the demo's searches finds a network with 0.80", "Sec. 4",
          "our goal: it has no such number", "op_nas-evolution", "goal.*warm"),
    Claim("together", "At equal time the network that a search found beats BERT's rule", "Table 5",
          "mean of nine GLUE numbers: {Table 5: AutoBERT-Zero, average} against {Table 5: BERT-base, average}",
          "together", "AutoBERT-Zero - BERT", digits=1, size=TOGETHER,
          needs="`python -m tests.claims.autobert_zero together --jobs 2`: 2.2 core-hours"),
    *(Claim(f"together-{name}", claim, "Table 5", "our question", "together", asks, digits=1) for name, claim, asks in (
        ("others", "It beats ALBERT's sharing, AutoTinyBERT's shape and mFormer's mixture",
         "AutoBERT-Zero - (ALBERT|AutoTinyBERT|mFormer)"),
        ("ideas", "At equal time each of these three beats BERT's rule", "^(ALBERT|AutoTinyBERT|mFormer) - BERT"),
        ("hybrid", "At equal time a searched network beats what a person types", "AutoBERT-Zero - hybrid"))),
    Claim("simulation", "On simulated landscapes OP-NAS beats random search with 100 candidates", "Figure 6",
          "curves, no numbers", "simulation", "100: OP-NAS - random", size=SIMULATED,
          needs="`python -m tests.claims.autobert_zero simulation --candidates 24 100 --repeats 40`: 8 minutes"),
    Claim("simulation-24", "On simulated landscapes OP-NAS beats random search with 24 candidates", "Figure 6",
          "curves, no numbers", "simulation", "24: OP-NAS - random"),
    Claim("simulation-evolution", "On simulated landscapes OP-NAS beats uniform mutations with 100 candidates",
          "Figure 6", "curves, no numbers", "simulation", "100: OP-NAS - evolution"),
    Claim("simulation-evolution-24", "On simulated landscapes OP-NAS beats uniform mutations with 24 candidates",
          "Figure 6", "curves, no numbers", "simulation", "24: OP-NAS - evolution"),
    Claim("hybrid", "Networks of convolution and attention beat convolution alone", "Table 5",
          "mean of nine GLUE numbers (dev): AutoBERT-Zero {Table 5: AutoBERT-Zero, average}, convolution alone {Table "
          "5: Conv-only, average}", "together", "hybrid - convolution", digits=1),
    Claim("hybrid-attention", "Networks of convolution and attention beat attention alone", "Table 5",
          "attention alone {Table 5: Att-only, average}, BERT-base {Table 5: BERT-base, average}", "together",
          "^hybrid - BERT", digits=1),
    Claim("hybrid-real", "They do so on real text and tasks", "Table 5", "as in the claims before",
          older="Older code (567355e) had +0.057 [+0.018, +0.096] over convolution alone and +0.001 [-0.055, +0.056] "
                "over attention alone, three seeds",
          needs="the study `together` with `--corpus path/to/corpus --glue path/to/glue`: 2.2 core-hours, estimated"),
    Claim("attention", "The attention in a searched network earns its place", "Sec. 4.2, Table 5",
          "the published network with its attentions replaced by convolutions: {Table 5: Conv-only, average} "
          "against {Table 5: AutoBERT-Zero, average}", "attention", digits=3,
          size="The best of the four networks that OP-NAS found in claim 1, of search seed 8, and itself with "
               "convolutions in the place of its attentions, both from scratch as the demo pre-trains, with other "
               "seeds than it was chosen by",
          needs="`python -m tests.claims.autobert_zero attention --folders RUN`: 0.4 core-hours behind a search"),
    Claim("pretraining", "Pre-training helps on the demo's tasks", "Sec. 4.1", "our question",
          needs="`python autobert_zero.py --finetune glue --eval_every 1000 --init runs/pre --out runs/tuned` and "
                "without `--init`: 1 core-hour, estimated"),
    Claim("glue", "The published network beats BERT of its size", "Table 2",
          "GLUE dev {Table 2: AutoBERT-Zero, GLUE dev} against {Table 2: BERT-base, GLUE dev}. Started from the "
          "super-net it has {Table 2: AutoBERT-Zero*, GLUE dev}, and on test {Table 2: AutoBERT-Zero*, GLUE test}, "
          "more than RoBERTa-base ({Table 2: RoBERTa-base, GLUE test}) and BERT-large ({Table 2: BERT-large, GLUE "
          "test})",
          needs="`python autobert_zero.py --pretrain --arch bert --layers 6 --length 64 --batch 16 --steps 1500 "
                "--corpus path/to/corpus` and the same with `--arch autobert-zero`, three seeds of each, then "
                "`--finetune CoLA,SST-2,MRPC`: 0.7 core-hours, estimated. At the paper's size it takes 40 passes over "
                "16 GB of text: {days: autobert_zero | base | pre-training of autobert-zero, 160 rows of 128, 1 shard: "
                "1.2e9} of an H100 for it and {days: autobert_zero | base | pre-training of bert, 160 rows of 128, "
                "1 shard: 1.2e9} for BERT"),
    Claim("squad", "It beats BERT-base on SQuAD", "Table 3",
          "F1 {Table 3: AutoBERT-Zero, SQuAD1.1} against {Table 3: BERT-base, SQuAD1.1} (v1.1), {Table 3: "
          "AutoBERT-Zero, SQuAD2.0} against {Table 3: BERT-base, SQuAD2.0} (v2.0)",
          needs="the networks of the claim before, then `python autobert_zero.py --finetune SQuAD1.1 --init runs/pre "
                "--squad path/to/squad --train_rows 800`: 0.3 core-hours, estimated"),
    Claim("scaling", "The network found at base size wins at small and large size", "Table 4",
          "GLUE dev: small {Table 4: AutoBERT-Zero-small, GLUE dev} (BERT {Table 4: BERT-small, GLUE dev}), large "
          "{Table 4: AutoBERT-Zero-large, GLUE dev} (BERT {Table 4: BERT-large, GLUE dev})",
          needs="40 passes over 16 GB of text, {days: autobert_zero | large | pre-training of autobert-zero, 80 rows "
                "of 128, 1 shard: 1.2e9} of an H100 for large"),
    Claim("counts", "It needs fewer parameters and FLOPs than BERT", "Tables 2 to 5",
          "{Table 2: AutoBERT-Zero, parameters}M and {Table 2: AutoBERT-Zero, FLOPs} FLOPs against {Table 2: "
          "BERT-base, parameters}M and {Table 2: BERT-base, FLOPs}", "counts", "fewer:"),
    Claim("counts-base", "The base networks have the printed number of parameters", "Table 2",
          "{Table 2: AutoBERT-Zero, parameters}M and {Table 2: BERT-base, parameters}M", "counts", "base:"),
    Claim("counts-large", "The large networks have the printed number of parameters", "Table 4",
          "{Table 4: AutoBERT-Zero-large, parameters}M and {Table 4: BERT-large, parameters}M", "counts", "large:"),
    Claim("counts-small", "The small network has the printed number of parameters", "Table 4",
          "{Table 4: AutoBERT-Zero-small, parameters}M", "counts", "small:",
          size="Counted. With word embeddings of width 128 it would have the printed number"),
    Claim("counts-flops", "It saves as many FLOPs as printed", "Table 2",
          "{Table 2: AutoBERT-Zero, FLOPs} against {Table 2: BERT-base, FLOPs}", "counts", "saving:"),
    Claim("latency", "It is faster than BERT", "Table 7",
          "{Table 7: AutoBERT-Zero, latency} s against {Table 7: BERT-base, latency} s, batches of 128 on a V100",
          "latency", "time", size="Base size, random weights and ids, one thread; medians of five rounds in turns",
          needs="`python -m tests.claims.autobert_zero latency --preset base --sequences 8`: a minute of a core; on a "
                "GPU the same with `--device cuda`"),
    Claim("memory", "It takes less memory than BERT", "Table 7",
          "{Table 7: AutoBERT-Zero, memory} GB against {Table 7: BERT-base, memory} GB, batches of 128 on a V100",
          "latency", "memory",
          needs="`python -m tests.claims.autobert_zero latency --preset base --device cuda`: a minute of a GPU"),
    Claim("uniformity", "Its tokens stay more different from each other", "Figure 5", "curves, no numbers",
          "uniformity",
          needs="`python -m tests.claims.autobert_zero uniformity --folders runs/bert-0 runs/autobert-zero-0 "
                "--glue path/to/glue --tasks MRPC --length 64`: 0.1 core-hours behind [these networks](#glue)"),
    Claim("fidelity", "A search's scores rank architectures as full training does", "Figure 8, App. B",
          "a picture of Kendall's correlations, no numbers", "fidelity", least=0.3,
          size="Candidates of a search of 56, without shared weights and after a warm start; one training seed",
          needs="`python -m tests.claims.autobert_zero fidelity --folders RUN --jobs 2`: 1.4 core-hours"),
    Claim("sharing", "Shared weights save most of a candidate's training", "Sec. 3.2, 4.1",
          "{Sec. 3.2: evaluation cost saved by BIWS}% of a candidate's cost, so {Sec. 4.1: cost of the search} "
          "V100 hours in place of {Sec. 4.1: cost of evolution without BIWS}",
          needs="the study `fidelity` of a search with shared weights and of others with more updates a candidate: 2 "
                "core-hours, estimated"),
    Claim("kernels", "Kernels go from wide to narrow, and blocks of convolution and attention win",
          "Sec. 4.2, Figure 7",
          "without the descent {Table 2: AutoBERT-w/o-desc, GLUE dev}, three attentions in a row {Table 2: "
          "AutoBERT-att, GLUE dev}, three convolutions in a row {Table 2: AutoBERT-conv, GLUE dev}, the network "
          "found {Table 2: AutoBERT-Zero, GLUE dev}",
          needs="the layers of the three rivals, which the paper prints as pictures. What a search finds here is shown "
                "by `python autobert_zero.py --search --corpus path/to/corpus --glue path/to/glue`"),
)

SHAPE = ("Real text. The SuperPLM is 4-96-384-6-96 with 4,000 updates of 32 rows of 48 tokens, each shape has 500 more "
         "from there, with three seeds; each limit had one search, and one of random draws, of 100 shapes. The loss is "
         "of masked words, in nats. Times are of one row of 128 tokens, without the head for masked words where "
         "nothing else is said")
SPEEDUPS = ("Networks without training, one row of 128 tokens, CPU time, medians of five rounds in which all take "
            "turns. KD: for distillation; PF: BERTs that Turc et al. released; S5: of the paper's Table 5. Where two "
            "tables of the paper disagree, the other one is taken")
AUTOTINYBERT = (
    Claim("shape", "The searched shape beats BERT's rule, in the time of four layers", "Figure 1, Table 1",
          "average with SQuAD, searched against rule: S1 {Table 1: AutoTinyBERT-S1, average} and {Table 1: "
          "BERT-S1, average}, S2 {Table 1: AutoTinyBERT-S2, average} and {Table 1: BERT-S2, average}, S3 {Table 1: "
          "AutoTinyBERT-S3, average} and {Table 1: BERT-S3, average}, S4 {Table 1: AutoTinyBERT-S4, average} and "
          "{Table 1: BERT-S4, average}", "shape", "as fast as 4-.*: rule", digits=3, size=SHAPE,
          needs="`python -m tests.claims.autotinybert shape --seed 7 --corpus path/to/corpus`: 0.7 core-hours"),
    *(Claim(f"shape-{layers}", f"The searched shape beats BERT's rule, in the time of {layers} layer{plural}",
            "Figure 1, Table 1", "as in the first claim", "shape", f"as fast as {digit}-.*: rule", digits=3)
      for layers, digit, plural in (("three", 3, "s"), ("two", 2, "s"), ("one", 1, ""))),
    Claim("shape-random", "The searched shape beats what a random search of the same size finds", "Sec. 3.5",
          "no number", "shape", ": random", digits=3),
    Claim("grid", "The searched shape is as good as the best of a grid within the limit, each trained alone",
          "Sec. 3.5", "our question",
          needs="`python autotinybert.py --further_train --arch 2-64-256-4-64 --further_steps 4500 --vocab_size 4000 "
                "--length 48 --corpus path/to/corpus` and so on, some thirty shapes: 3 core-hours, estimated"),
    Claim("speedups", "The searched shapes are as many times as fast as BERT-base", "Tables 1, 4",
          "S1 {Table 4: AutoTinyBERT-S1, speed-up}, S2 {Table 4: AutoTinyBERT-S2, speed-up}, S3 {Table 4: "
          "AutoTinyBERT-S3, speed-up}, S4 {Table 4: AutoTinyBERT-S4, speed-up}, and in another table {Table 1: "
          "AutoTinyBERT-S4, speed-up}", "latency", "for pre-training", size=SPEEDUPS,
          needs="`python -m tests.claims.autotinybert latency --preset base --latency_rounds 5`: a minute of a core"),
    Claim("speedups-rule", "So are the shapes of BERT's rule", "Tables 1, 4", "the column published",
          "latency", "BERT's rule"),
    Claim("speedups-distilled", "So are the shapes searched for distillation", "Table 4", "the column published",
          "latency", "for distillation"),
    Claim("ranking", "Algorithm 1 ranks architectures better than the search HAT does", "Table 3, Figure 4",
          "pairwise accuracy {Table 3: HAT, pairwise accuracy}% (HAT) and {Table 3: ILS + SME + EBL, pairwise "
          "accuracy}% (all). SQuAD's F1 in one shot {Table 3: ILS + SME + EBL, SQuAD} (HAT {Table 3: HAT, SQuAD}), "
          "trained alone {Table 3: stand-alone, SQuAD}", "ranking", "hat", digits=1,
          needs="`python -m tests.claims.autotinybert ranking --tasks MLM-saved --largest 4-64-256-8-64 --smallest "
                "1-16-28-1-8 --reference 4-64-256-8-64 --length 32 --batch 32 --vocab_size 2000 --steps 1000 "
                "--further_steps 600 --corpus path/to/corpus --jobs 2`: 1.3 core-hours",
          older="Older code (21e60ad) had -0.8 points [-2.9, +1.2] with three seeds; two seeds of the truth order 91% "
                "of the pairs alike, and so did each way"),
    Claim("ranking-parts", "Algorithm 1 ranks better than its parts", "Table 3",
          "pairwise accuracy {Table 3: ILS, pairwise accuracy}%, {Table 3: ILS + SME, pairwise accuracy}%, and with "
          "all of it {Table 3: ILS + SME + EBL, pairwise accuracy}%", "ranking", "ils|sme", digits=1,
          older="Older code (21e60ad) had +0.6 [-5.8, +6.9] over identical layers and -1.7 [-8.8, "
                                   "+5.5] over sub-matrices, in points, with three seeds"),
    Claim("distillation", "Searched shapes win under distillation too", "Table 2",
          "average, searched against rule: S1 {Table 2: AutoTinyBERT-KD-S1, average} and {Table 2: BERT-KD-S1, "
          "average}, S2 {Table 2: AutoTinyBERT-KD-S2, average} and {Table 2: BERT-KD-S2, average}, S3 {Table 2: "
          "AutoTinyBERT-KD-S3, average} and {Table 2: BERT-KD-S3, average}, S4 {Table 2: AutoTinyBERT-KD-S4, "
          "average} and {Table 2: BERT-KD-S4, average}. On test {Table 2: AutoTinyBERT-KD-S1, test average}, as "
          "MobileBERT ({Table 2: MobileBERT-tiny, test average}) and above MiniLM ({Table 2: MiniLM-4L516D, test "
          "average})",
          needs="`python autotinybert.py --further_train --setting distill --teacher runs/super --further_steps 700 "
                "--arch 3-48-192-8-48 --corpus path/to/corpus`, the same shape by masked words, three seeds of each, "
                "then `--finetune SST-2,MRPC,CoLA`: 0.5 core-hours behind a large teacher, estimated"),
    Claim("predictor", "A network predicts the latency of architectures that nobody measured", "Sec. 3.5",
          "a feed-forward network, no error given", "predictor", "proportional", digits=1,
          size="401 architectures of the paper's space, the least of three times for a row of 128 tokens, four fifths "
               "to learn from. MAPE: mean error in percent; linear: least squares, which the file takes; mlp: the "
               "paper's kind. The interval is over the architectures, against a latency proportional to FLOPs",
          needs="`python -m tests.claims.autotinybert predictor --preset base --latency_rounds 3`: 10 minutes"),
    Claim("convergence", "Starting from the SuperPLM saves half of the training", "Figure 5",
          "{Figure 5: training time saved}% saved",
          needs="`python autotinybert.py --superplm --largest 4-64-256-8-64 --smallest 1-16-28-1-8 --reference "
                "4-64-256-8-64 --length 32 --batch 32 --vocab_size 2000 --steps 1500 --corpus path/to/corpus`, then "
                "`python autotinybert.py --further_train` of `--arch 3-48-192-6-48` with these flags and "
                "`--further_steps 700`, once with `--init` of that run and once without, three seeds of each: 0.5 "
                "core-hours, estimated"),
    Claim("fast", "A rule read off the winners replaces the search", "Table 5, Sec. 4.4",
          "average {Table 5: AutoTinyBERT-Fast-S5, average} (Fast), {Table 5: AutoTinyBERT-S5, average} (search), "
          "{Table 5: BERT-S5, average} (BERT-S5), for {Table 5: AutoTinyBERT-Fast-S5, search} + {Table 5: "
          "AutoTinyBERT-Fast-S5, training}, {Table 5: AutoTinyBERT-S5, search} + {Table 5: AutoTinyBERT-S5, "
          "training} and {Table 5: BERT-S5, training} V100 hours",
          needs="`python autotinybert.py --search --strategy fast --largest 4-64-256-8-64 --smallest 1-16-28-1-8 "
                "--reference 4-64-256-8-64 --length 32 --batch 32 --vocab_size 2000 --tasks MLM-saved --corpus "
                "path/to/corpus --speedup 4.6` and with `--strategy evolution`, three seeds of each: 1 core-hour, "
                "estimated"),
    Claim("rule", "The winners follow a rule of their own", "Table 4, Sec. 4.4",
          "d^f is {Sec. 4.4: least d^f} to {Sec. 4.4: largest d^f} times d^m, d^q {Sec. 4.4: least d^q} to {Sec. "
          "4.4: largest d^q} times",
          needs="the winners of many searches like those of claim 1, of which one more takes 0.7 core-hours"),
    Claim("space", "The search spaces have the printed sizes", "App. B",
          "{App. B: search space, pre-training} M for pre-training, {App. B: search space, distillation} M for "
          "distillation", "space", size="Counted; mlm is pre-training"),
    Claim("others", "It beats other searches and small BERTs", "Table 1",
          "GLUE {Table 1: AutoTinyBERT-S2, GLUE} at {Table 4: AutoTinyBERT-S2, speed-up} times BERT-base's speed, "
          "NAS-BERT {Table 1: NAS-BERT10, GLUE} at {Table 1: NAS-BERT10, speed-up}. Average {Table 1: "
          "AutoTinyBERT-S1, average} (S1), of the released four-layer BERT of its speed {Table 1: PF-4L512, "
          "average}",
          needs="five passes over 16 GB of text for the SuperPLM, {days: autotinybert | base | SuperPLM, sub-batches "
                "of 16 rows of 128, 2 shards: 1.5e8} of an H100, and for each winner no more than {days: autotinybert "
                "| base | further training, sub-batches of 16 rows of 128, 2 shards: 1.5e8}"),
)

ORDER = ("Two layers of width 64, 3,000 updates of 64 rows of 16 tokens on words alone, then 3,000 of 32 rows of 64 "
         "with each objective. Percent of 23,453 masked words and some 1,990 pairs (novels: 28,794 and 2,475). NSP and "
         "SOP are told by a logistic regression on [CLS] of the frozen model; own head: by the one that was trained. "
         "Shuffled: SOP with random labels")
WORDS = ("Two layers of width 64 that share everything, E = 32, 3,000 updates of 64 rows of 16 tokens, words alone, "
         "demo text. Percent of 21,176 masked words, differences in points")
GENTLE = WORDS + ". Half the learning rate and three times the warm-up, at which eight layers learn"
ALBERT = (
    Claim("order", "A model trained on sentence order knows it better than one trained on next sentences", "Table 5",
          "accuracy in SOP {Table 5: SOP, SOP} against {Table 5: NSP, SOP}", "order", "SOP model - (control|NSP model) "
          "on SOP", digits=1, size=ORDER,
          needs="`python -m tests.claims.albert order --jobs 2`: 1.1 core-hours on the demo text"),
    Claim("order-chance", "A model trained on next sentences is at chance on sentence order", "Table 5",
          "accuracy in SOP {Table 5: NSP, SOP}, of a model of words alone {Table 5: None, SOP}", "order", "3 points",
          digits=1),
    Claim("order-next", "A model trained on sentence order can tell next sentences too", "Table 5",
          "accuracy in NSP {Table 5: SOP, NSP}, of NSP's own model {Table 5: NSP, NSP}, of words alone {Table 5: None, "
          "NSP}", "order", "control on NSP", digits=1),
    Claim("order-words", "Sentence order costs no masked words", "Table 5",
          "average of the tasks: none {Table 5: None, average}, NSP {Table 5: NSP, average}, SOP {Table 5: SOP, "
          "average}", "order", "on words", -1.0, 1),
    Claim("order-novels", "On novels, too, the model of sentence order knows it better", "Table 5",
          "as in the first claim", "order-many", "SOP model - (control|NSP model) on SOP", digits=1,
          needs="`python -m tests.claims.albert order --many path/to/corpus/books`: 0.6 core-hours on novels",
          size=f"{ORDER}. A probe of twice the width at half the rate, one seed: SOP 50.7, control 51.2"),
    Claim("embedding", "A small E is enough where layers are shared", "Table 3",
          "average for E of 64, 128, 256, 768, shared: {Table 3: all-shared E=64, average}, {Table 3: all-shared "
          "E=128, average}, {Table 3: all-shared E=256, average}, {Table 3: all-shared E=768, average}",
          "sharing", "E = 32 - E = 64", -0.5, 1, WORDS,
          needs="`python -m tests.claims.albert sharing --jobs 2`: 0.8 core-hours"),
    Claim("embedding-unshared", "Where nothing is shared, a larger E helps", "Table 3",
          "average for the smallest and the largest E: {Table 3: not-shared E=64, average} and {Table 3: not-shared "
          "E=768, average}", "sharing", "E = 64 - E = 16", digits=1),
    Claim("sharing", "Sharing all weights costs a little", "Table 4",
          "average at E = 768 and 128: nothing shared {Table 4: not-shared E=768, average} and {Table 4: "
          "not-shared E=128, average}, all {Table 4: all-shared E=768, average} and {Table 4: all-shared E=128, "
          "average}", "sharing", "not-shared - all-shared", digits=1),
    Claim("sharing-parts", "Most of that cost is the feed-forward part's", "Table 4",
          "average at E = 768 and 128: attention shared {Table 4: shared-attention E=768, average} and {Table 4: "
          "shared-attention E=128, average}, feed-forward {Table 4: shared-FFN E=768, average} and {Table 4: "
          "shared-FFN E=128, average}", "sharing", "shared-attention - shared-FFN", digits=1),
    Claim("parameters", "ALBERT's configurations have a fraction of BERT's parameters", "Tables 1, 3, 4, 12",
          "{Table 1: ALBERT base, parameters} M for base in place of {Table 1: BERT base, parameters} M, and so "
          "on, in the column paper", "parameters", "of 24 rows",
          size="Counted in four ways: A the encoder, B with its pooler, C with both heads too, D as B with positions "
               "and segments of width H"),
    Claim("parameters-xxlarge", "xxlarge has the printed number of parameters", "Table 1",
          "{Table 1: ALBERT xxlarge, parameters} M, elsewhere {Sec. 3.2: ALBERT xxlarge, parameters} M and {Table 12: "
          "H=4096, 3 layers, parameters} M", "parameters", "xxlarge:"),
    Claim("speed", "ALBERT trains faster than BERT of its shape", "Table 2",
          "speed over BERT large: base {Table 2: ALBERT base, speed-up} and BERT base {Table 2: BERT base, speed-up}, "
          "on many TPUs",
          needs="`python albert.py --pretrain --preset base --length 128 --batch 2 --steps 20 --corpus "
                "path/to/corpus` and the same with `--preset bert-base`, one after another on an idle machine; "
                "log.jsonl has the tokens a second: 0.1 core-hours, estimated. What sharing saves in the exchange "
                "needs many cards"),
    Claim("flops", "The published speeds follow from the FLOPs", "Table 2",
          "speed over BERT large: base {Table 2: ALBERT base, speed-up}, large {Table 2: ALBERT large, speed-up}, "
          "xlarge {Table 2: ALBERT xlarge, speed-up}, xxlarge {Table 2: ALBERT xxlarge, speed-up}", "flops",
          size="Counted: products of matrices alone, 512 tokens"),
    Claim("xxlarge", "xxlarge beats BERT large with fewer parameters", "Table 2",
          "average {Table 2: ALBERT xxlarge, average} against {Table 2: BERT large, average}. At base size BERT is "
          "ahead: {Table 2: ALBERT base, average} against {Table 2: BERT base, average}",
          needs="125,000 updates of 4,096 rows, {days: albert | xxlarge | pre-training, 32 rows of 512, 2 shards: "
                "512e6} of an H100"),
    Claim("time", "A wide network that shares wins at equal training time", "Table 6",
          "average {Table 6: ALBERT-xxlarge, average} against {Table 6: BERT-large, average}", "equal_time", digits=1,
          size=f"{WORDS}. ALBERT of H = 128 with E = 32 against BERT of H = 64, in the time of 1,000, 2,000 and 4,000 "
               "of BERT's updates", needs="`python -m tests.claims.albert equal_time --jobs 2`: 0.4 core-hours",
          older="Older code and demo data (07d90ea) had -15.3 points [-20.9, -9.6] at the largest budget"),
    Claim("depth", "A deeper shared stack is better", "Tables 11, 13",
          "average for 1, 3, 6, 12, 24, 48 layers: {Table 11: 1, 3, 6, 12, 24, 48 layers, average}. xxlarge of 12 "
          "and 24 layers: {Table 13: 12 and 24 layers, average}", "depth", "beat", digits=1, size=GENTLE,
          older="Older code and demo data (8feed9a) had +0.3 points [-0.2, +0.8] for 2 layers against 1, and -7.0 "
                "[-23.0, +8.9] for 8 against 4",
          needs="`python -m tests.claims.albert depth --jobs 2`: 0.4 core-hours"),
    Claim("depth-less", "With every doubling of the depth there is less to gain", "Table 11", "as in the claim before",
          "depth", "less", digits=1),
    Claim("groups", "Smaller groups of shared layers do better", "Sec. 4.5", "no numbers", "groups", digits=1,
          size=f"{GENTLE}. Four layers",
          needs="`python -m tests.claims.albert groups --jobs 2`: 0.5 core-hours"),
    Claim("dropout", "Taking dropout out helps", "Table 8, Figure 2",
          "average {Table 8: with dropout, average} with it, {Table 8: without dropout, average} without", "dropout",
          digits=1, size=WORDS, needs="`python -m tests.claims.albert dropout --jobs 2`: 0.2 core-hours"),
    Claim("width", "A wider network is better", "Table 12",
          "average for H of 1024, 2048, 4096, 6144: {Table 12: H of 1024, 2048, 4096, 6144, average}", "width", "beat",
          digits=1, size=GENTLE, needs="`python -m tests.claims.albert width --jobs 2`: 0.2 core-hours"),
    Claim("width-less", "With every doubling of the width there is less to gain", "Table 12", "as in the claim before",
          "width", "less", digits=1),
    Claim("layers", "Shared layers change their input more smoothly than others", "Figure 1",
          "{Figure 1: layers of BERT-large and ALBERT-large} layers, curves, no numbers", "smoothness", "roughness",
          size=f"{GENTLE}. Eight layers; the angle between the input and the output of each. Roughness says how far "
               "angles are from the middle of their neighbours", needs="`python -m tests.claims.albert smoothness "
                                                                       "--jobs 2`: 0.2 core-hours",
          older="Older code and demo data (8feed9a) had -0.10 [-0.76, +0.57]; one of three networks had not learnt"),
    Claim("layers-last", "The last shared layer still changes its input", "Figure 1", "as in the claim before",
          "smoothness", "last angle", digits=1, size=GENTLE),
    Claim("data", "More text helps, but for SQuAD", "Table 7, Figure 2",
          "average {Table 7: with additional data, average} against {Table 7: no additional data, average}",
          needs="two trainings of base, {days: albert | base | pre-training, 64 rows of 512, 2 shards: 512e6} of "
                "an H100 each"),
    Claim("best", "It is the best on GLUE, SQuAD and RACE", "Tables 9, 10",
          "GLUE {Table 9: ALBERT, GLUE test}, SQuAD2.0 {Table 10: ALBERT, SQuAD2.0 test F1} (F1), RACE {Table 10: "
          "ALBERT, RACE test} of ensembles, {Table 10: ALBERT 1.5M, RACE test} of one model",
          needs="`python albert.py --finetune paper --preset xxlarge --init path/to/albert-xxlarge-v2` with the "
                "official data: a card of 40 GB (RACE with `--accumulate 8`)"),
)

MIXED = ("CIFAR-10, 10,000 pictures to train on and 2,000 to score, patches of 2, which make 257 tokens. Three "
         "searches of one seed with 100 samples and a limit of 0.09 GFLOPs. Each network that is found is trained from"
         " scratch, 800 updates of 16 pictures; accuracies are shares, differences are in pairs of training seeds")
PERIODS = ("Made-up pictures of 65 tokens, whose rows repeat themselves after 2, 3, 4 or 5 columns: their class, and "
           "chance is 0.25. Three layers of width 64, 1,600 updates of 32 of 10,000 pictures, 2,000 to score. Two "
           "searches with 100 samples and a limit of 0.016 GFLOPs, which no network of softmax alone meets. Accuracies "
           "are shares. The task is easy for who reads rows: naive Bayes counts the white squares of each")
TRANSLATED = ("Multi30k, English to German. Three encoder and two decoder layers of width 64, 1,500 updates of 1,024 "
              "tokens; BLEU of 1,000 test sentences, four beams, differences in pairs of seeds. The mixture has a "
              "linear second encoder layer; a linear decoder is so in both of its attentions. As released: with the "
              "lengths of cosFormer's code, of the padded batch and, in decoding, of the prefix. In a pilot linear "
              "attention everywhere had 14.4; the translation of the most similar training sentence has 6.8")
LENGTH = ("One attention of eight heads of 64, one row, CPU time, medians of 5 to 80 turns. Kept: for the backward "
          "pass; peak: of a GPU. Relative: with the paper's relative positions; causal: of a decoder")
RANKED = ("`python -m tests.claims.mformer ranker --folders runs/ranked --cifar10 path/to/cifar-10-batches-bin`: 0.4 "
          "core-hours with the search before it, whose command stands in tests/claims/mformer.py")
MFORMER = (
    Claim("mixed", "A search over mixed attention finds better networks than one over softmax", "Table 5, Figure 1",
          "CIFAR-10: mFormer {Table 5: CIFAR-10, mFormer}% with {Table 5: CIFAR-10, mformer, FLOPS} G, "
          "Transformer* {Table 5: CIFAR-10, Transformer*}% with {Table 5: CIFAR-10, transformer*, FLOPS} G",
          "mixed", "- softmax search", digits=3, size=MIXED,
          needs="`python -m tests.claims.mformer mixed --cifar10 path/to/cifar-10-batches-bin --jobs 2`: 1.2 "
                "core-hours",
          older="Older code (5a9df59) had +0.001 [-0.043, +0.046] with three seeds: the mixed search had found softmax "
                "alone"),
    Claim("mixed-twin", "The mixed network is within a point of its softmax twin", "Table 5",
          "CIFAR-10 {Table 5: CIFAR-10, mFormer}% against {Table 5: CIFAR-10, mFormer (all Softmax)}%",
          "mixed", "mixed, all softmax", -0.01, 3),
    Claim("mixed-time", "It takes 0.7 of the twin's time or less", "Figure 1", "a picture, no numbers",
          "mixed", "time"),
    Claim("mixed-linear", "Its linear twin is two points worse or more", "Table 5",
          "CIFAR-10 {Table 5: CIFAR-10, mFormer (all linear)}% against {Table 5: CIFAR-10, mFormer}%. Transformer* "
          "made linear {Table 5: CIFAR-10, Transformer* (all linear)}%, cosFormer* made softmax {Table 5: CIFAR-10, "
          "cosFormer* (all Softmax)}%",
          "mixed", "mixed, all linear", 0.02, 3,
          older="Older code (5a9df59) had -0.010 [-0.054, +0.034] with three seeds: the linear twin was no worse"),
    *(Claim(f"periods{name}", claim, "Figure 1", "our question, on pictures made for it", "periods", asks, least, 3,
            *details) for name, claim, asks, least, *details in (
        ("", "Softmax is better than linear attention where exact places count", "all softmax - ", 0, PERIODS, "",
         "`python -m tests.claims.mformer periods --jobs 2`: 0.7 core-hours"),
        ("-one", "There one softmax layer of three is better than none", "softmax (first|second|third) -", 0),
        ("-search", "There a mixed search beats one over linear attention, at the same limit", "mixed .* linear", 0),
        ("-within", "There it finds what is within two points of softmax alone", "mixed .* softmax", -0.02))),
    Claim("translation", "It translates like the softmax network with fewer parameters", "Table 3, Table 5",
          "BLEU {Table 5: WMT'14, mFormer} with {Table 5: WMT'14, mformer, parameters} M parameters, Transformer* "
          "{Table 5: WMT'14, Transformer*} with {Table 5: WMT'14, transformer*, parameters} M",
          needs="`python mformer.py --task wmt14 --search --preset small --train_text path/to/train --valid_text "
                "path/to/val --test_text path/to/test --space mixed` and with `--space softmax`, each winner by "
                "`--train` and `--evaluate` with three seeds, on Multi30k: 2 core-hours, estimated"),
    Claim("linear", "Linear attention in the encoder collapses in translation, to half of softmax's BLEU or less",
          "Table 5, Sec. 4.2.2", "BLEU {Table 5: WMT'14, cosFormer*, BLEU} and, of mFormer made linear, {Table 5: "
          "WMT'14, mFormer (all linear)}, of Transformer* made linear {Table 5: WMT'14, Transformer* (all linear)}",
          "translation", "half .* encoder", digits=1, size=TRANSLATED,
          needs="`python -m tests.claims.mformer translation --train_text path/to/train --valid_text path/to/val "
                "--test_text path/to/test_2016_flickr --jobs 2`: 1 core-hour"),
    Claim("decoder", "Linear attention in the decoder does so too", "Sec. 8",
          "{Sec. 8: linear attention in the decoder} BLEU in all three cases", "translation", "half .* decoder",
          digits=1),
    Claim("types", "In translation softmax in all layers is better than a mixture, and that than a linear encoder",
          "Table 5, Sec. 4.5", "mFormer {Table 5: WMT'14, mFormer} BLEU, all softmax {Table 5: WMT'14, mFormer (all "
          "Softmax)}, all linear {Table 5: WMT'14, mFormer (all linear)}", "translation", "mixture", digits=1),
    *(Claim(name, f"True lengths in the {side}'s linear attention (D1) translate better than cosFormer's code's",
            "Eq. 3", "our question", "translation", f"{side} as released", digits=1)
      for name, side in (("lengths", "decoder"), ("lengths-encoder", "encoder"))),
    Claim("length", "The time of linear attention grows with the length", "Sec. 1, Figure 3", "no numbers",
          "length", "linear attention's time", size=LENGTH,
          needs="`python -m tests.claims.mformer length --cost cpu`: 12 minutes of a core"),
    Claim("length-softmax", "That of softmax attention grows with its square", "Sec. 1, Figure 3", "no numbers",
          "length", "plain softmax"),
    Claim("length-fastest", "Linear attention is the fastest of all for long inputs", "Sec. 1", "no numbers",
          "length", "fastest"),
    Claim("networks", "One softmax layer of four takes 0.7 of the time of softmax alone, or less, at 1,025 tokens",
          "Figure 1", "a picture, no numbers", "networks",
          size="Whole networks of four layers of width 64, forward, one picture, CPU time, medians of 40 turns and "
               "their 95% intervals. A mixture has one softmax layer and three linear ones, and stands beside softmax "
               "of its own kind", needs="`python -m tests.claims.mformer networks --cost cpu`: a minute of a core"),
    Claim("rankers", "A ranker orders architectures by their loss", "Sec. 3.1.2", "no numbers", "ranker", "tau", 0.8,
          needs=RANKED, older="Older code (0e46154) had a tau of 0.78 ± 0.03 with 400 sub-nets, below the 0.8 asked"),
    Claim("pruning", "Pruning the space helps the search", "Sec. 3.1.2",
          "no numbers; the fastest and slowest {Sec. 3.1.2: fastest and slowest discarded} of the samples are left "
          "out", "ranker", "pruning", digits=4,
          older="Older code (0e46154) had -0.0028 nats [-0.0064, +0.0007] with three seeds"),
    Claim("importance", "Attention types matter most for the accuracy on images", "Sec. 7", "a picture, no numbers",
          "importance", "accuracy:", needs="`python -m tests.claims.mformer importance --folders runs/ranked`: seconds "
                                          "behind [this search](#rankers)",
          older="Older code (9873c82) had the width first and the attention type second"),
    Claim("importance-layers", "The number of layers matters most for efficiency", "Sec. 7", "a picture, no numbers",
          "importance", "efficiency:"),
    Claim("structure", "cosFormer* wants shallower and thinner networks than Transformer*", "Tables 3, 4, Figures 5, 6",
          "layers of Transformer*, cosFormer*, mFormer: {Table 3: Transformer*, cosFormer*, mFormer: decoder "
          "layers} in the decoder (translation), {Table 4: Transformer*, cosFormer*, mFormer: layers} (images)",
          needs="the searches of claim 1 and of [translation](#translation); `PUBLISHED` in mformer.py has the paper's "
                "lists"),
    Claim("counts", "The networks for images have the printed parameters and FLOPs", "Tables 4, 5",
          "mFormer {Table 5: CIFAR-10, mformer, parameters} M and {Table 5: CIFAR-10, mformer, FLOPS} G, all "
          "softmax {Table 5: CIFAR-10, mformer-softmax, FLOPS} G", "counts", "printed numbers",
          size="Counted. The paper's counting leaves out the products of linear attention; the honest one has them"),
    Claim("counts-honest", "mFormer saves as many FLOPs over its softmax twin as printed", "Table 5",
          "{Table 5: CIFAR-10, mformer, FLOPS} against {Table 5: CIFAR-10, mformer-softmax, FLOPS} G", "counts",
          "saving", size="Counted. The paper's counting leaves out the products of linear attention"),
    Claim("vanilla", "Searched networks beat the hand-made ones", "Table 5",
          "CIFAR-10: cosFormer* {Table 5: CIFAR-10, cosFormer*} against {Table 5: CIFAR-10, Vanilla cosFormer}%, "
          "Transformer* {Table 5: CIFAR-10, Transformer*} against {Table 5: CIFAR-10, Vanilla Transformer}%. "
          "Translation: {Table 5: WMT'14, Transformer*} against {Table 5: WMT'14, Vanilla Transformer} BLEU",
          needs="four trainings of 140,000 updates of 256 pictures, {days: mformer | base cifar10 | training, 64 "
                "pictures, 2 shards: 3.584e7} of an H100 each by products of matrices alone, more by their launches"),
)

CLAIMS = {"autobert_zero": AUTOBERT_ZERO, "autotinybert": AUTOTINYBERT, "albert": ALBERT, "mformer": MFORMER}
